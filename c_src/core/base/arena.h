/* An arena: many small allocations that are freed together. Some arenas last for one call, others as long as the
 * checkpoint whose tree and index they hold. A zeroed arena is empty and ready for use. */
#ifndef XT_BASE_ARENA_H
#define XT_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct xt_arena_chunk;

typedef struct {
  struct xt_arena_chunk *chunks;
  size_t used;   /* bytes allocated so far */
  size_t limit;  /* maximum of `used`; 0 means no limit */
  bool exceeded; /* an allocation failed because of the limit */
} xt_arena;

/* Returns zeroed memory, aligned for any type. Returns NULL if the limit is exceeded, if there is not enough memory or
 * if count * size overflows. */
void *xt_arena_alloc(xt_arena *arena, size_t count, size_t size);

/* Returns a NUL-terminated copy of size bytes of text, or NULL like xt_arena_alloc. */
char *xt_arena_text(xt_arena *arena, const char *text, size_t size);

/* Frees all allocations and leaves the arena empty. */
void xt_arena_free(xt_arena *arena);

#endif
