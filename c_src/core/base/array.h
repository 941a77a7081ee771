/* Growing arrays: a pointer and the number of items that there is room for. A NULL pointer and 0 are an empty array.
 *
 *   if (!xt_array_reserve(&list->items, &list->room, list->count + 1, sizeof *list->items)) return no_memory;
 *   list->items[list->count++] = item;
 */
#ifndef XT_BASE_ARRAY_H
#define XT_BASE_ARRAY_H

#include <stddef.h>

#include "core/memory/allowance.h"

/* The slow path. `array` is the address of the pointer to the items. */
bool xt_array_grow(void *array, size_t *room, size_t count, size_t size, xt_allowance *allowance);

/* Makes room for `count` items of `size` bytes; at least doubles the room if there is too little. Returns false, and
 * changes nothing, if there is not enough memory. The items are freed with free(). */
static inline bool xt_array_reserve(void *array, size_t *room, size_t count, size_t size) {
  return count <= *room || xt_array_grow(array, room, count, size, NULL);
}

/* Same for memory that a file causes. Who frees the items returns `room * size` bytes to the allowance. */
static inline bool xt_array_reserve_from(xt_allowance *allowance, void *array, size_t *room, size_t count,
                                         size_t size) {
  return count <= *room || xt_array_grow(array, room, count, size, allowance);
}

#endif
