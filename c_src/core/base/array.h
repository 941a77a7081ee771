/* Growing arrays: a pointer and the number of items that there is room for. A NULL pointer and 0 are an empty array.
 *
 *   if (!xt_array_reserve(&list->items, &list->room, list->count + 1, sizeof *list->items)) return no_memory;
 *   list->items[list->count++] = item;
 *
 * xt_allowance_reserve (memory/allowance.h) does the same for memory that a file causes.
 */
#ifndef XT_BASE_ARRAY_H
#define XT_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>

/* Returns the room of an array that must hold `count` items and has too little room: at least twice as much. Returns 0
 * if its size in bytes would overflow. */
size_t xt_array_next_room(size_t room, size_t count, size_t size);

/* Changes the room. `array` is the address of the pointer to the items. */
bool xt_array_resize(void *array, size_t *room, size_t wanted, size_t size);

/* The slow path of xt_array_reserve. */
bool xt_array_grow(void *array, size_t *room, size_t count, size_t size);

/* Makes room for `count` items of `size` bytes; at least doubles the room if there is too little. Returns false, and
 * changes nothing, if there is not enough memory. The items are freed with free(). */
static inline bool xt_array_reserve(void *array, size_t *room, size_t count, size_t size) {
  return count <= *room || xt_array_grow(array, room, count, size);
}

#endif
