/* An arena: many small allocations that are freed together. Some arenas last for one call, others as long as the
 * checkpoint whose tree and index they hold. A zeroed arena is empty and ready for use. */
#ifndef XT_MEMORY_ARENA_H
#define XT_MEMORY_ARENA_H

#include <stddef.h>

#include "core/memory/allowance.h"

struct xt_arena_chunk;

typedef struct {
  struct xt_arena_chunk *chunks;
  xt_allowance *allowance; /* the chunks are taken from it; NULL for none */
} xt_arena;

/* Returns zeroed memory, aligned for pointers and 64-bit numbers. Returns NULL if the allowance is used up, if there is
 * not enough memory or if count * size overflows. */
void *xt_arena_alloc(xt_arena *arena, size_t count, size_t size);

/* Returns a NUL-terminated copy of size bytes of text, or NULL like xt_arena_alloc. */
char *xt_arena_text(xt_arena *arena, const char *text, size_t size);

/* Frees all allocations and leaves the arena empty. */
void xt_arena_free(xt_arena *arena);

#endif
