/* An arena: many small allocations that are freed together. Some arenas last for one call, others as long as the
 * checkpoint whose tree and index they hold. A zeroed arena is empty and ready for use. */
#ifndef XT_MEMORY_ARENA_H
#define XT_MEMORY_ARENA_H

#include <stddef.h>
#include <string.h>

#include "core/memory/allowance.h"

struct xt_arena_chunk;

typedef struct {
  struct xt_arena_chunk *chunks;
  xt_allowance *allowance; /* the chunks are taken from it; NULL for none */
  size_t expected;         /* bytes that will be needed, if that is known: fewer and larger chunks; otherwise 0 */
} xt_arena;

/* Returns zeroed memory, aligned for pointers and 64-bit numbers. Returns NULL if the allowance is used up, if there is
 * not enough memory or if count * size overflows. */
void *xt_arena_alloc(xt_arena *arena, size_t count, size_t size);

/* Same for bytes that the caller writes before it reads them: they are not cleared. */
void *xt_arena_alloc_uncleared(xt_arena *arena, size_t size);

/* Returns a NUL-terminated copy of size bytes of text, or NULL like xt_arena_alloc. */
char *xt_arena_text(xt_arena *arena, const char *text, size_t size);

/* Makes room for `count` items of `size` bytes in an array of the arena, as xt_array_reserve (base/array.h) does. The
 * old items stay in the arena. */
static inline bool xt_arena_reserve(xt_arena *arena, void *array, size_t *room, size_t count, size_t size) {
  if (count <= *room) return true;
  size_t wanted = *room < 2 ? 4 : 2 * *room;
  if (wanted < count) wanted = count;
  void *items, *grown = xt_arena_alloc(arena, wanted, size);
  if (!grown) return false;
  memcpy(&items, array, sizeof items); /* the array is a pointer of another type */
  if (*room) memcpy(grown, items, *room * size);
  memcpy(array, &grown, sizeof grown);
  *room = wanted;
  return true;
}

/* Frees all allocations and leaves the arena empty. */
void xt_arena_free(xt_arena *arena);

/* Returns how many bytes of freed arenas are kept for the next ones: at most 48 MiB, each for about three seconds. */
size_t xt_arena_kept_bytes(void);

#endif
