/* Memory for the length of one call: many small pieces, freed together. */
#ifndef XT_BASE_ARENA_H
#define XT_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct xt_arena_chunk;

typedef struct {
  struct xt_arena_chunk *chunks; /* a zeroed arena is empty and usable */
  size_t used, limit;            /* bytes; a limit of 0 is none */
  bool exceeded;                 /* an allocation failed for the limit */
} xt_arena;

/* Zeroed, aligned for anything; NULL when there is no memory or count * size overflows. */
void *xt_arena_alloc(xt_arena *arena, size_t count, size_t size);

/* A NUL-terminated copy. */
char *xt_arena_text(xt_arena *arena, const char *text, size_t size);

void xt_arena_free(xt_arena *arena);

#endif
