/* An arena for the fuzz targets, linked instead of core/memory/arena.c: every piece is a separate allocation of exactly
 * its size, so that the sanitizer reports an access between two pieces. */
#include <sanitizer/lsan_interface.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/memory/arena.h"

struct xt_arena_chunk {
  struct xt_arena_chunk *next;
  void *data;
  size_t size;
};

/* The list is not part of what the targets measure, so its memory does not come from malloc. It is used again. */
static struct xt_arena_chunk *unused;

static struct xt_arena_chunk *take_chunk(void) {
  enum { SLAB = 1 << 16 };
  if (!unused) {
    struct xt_arena_chunk *slab = mmap(NULL, SLAB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (slab == MAP_FAILED) abort();
    __lsan_register_root_region(slab, SLAB);
    for (size_t i = 0; i < SLAB / sizeof *slab; i++) slab[i].next = unused, unused = &slab[i];
  }
  struct xt_arena_chunk *taken = unused;
  unused = taken->next;
  return taken;
}

void *xt_arena_alloc(xt_arena *arena, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2) return NULL;
  if (!bytes) bytes = 1;
  if (!xt_allowance_take(arena->allowance, bytes)) return NULL;
  void *data = calloc(1, bytes);
  if (!data) {
    xt_allowance_return(arena->allowance, bytes);
    return NULL;
  }
  struct xt_arena_chunk *piece = take_chunk();
  *piece = (struct xt_arena_chunk){arena->chunks, data, bytes};
  arena->chunks = piece;
  return data;
}

void *xt_arena_alloc_uncleared(xt_arena *arena, size_t size) { return xt_arena_alloc(arena, 1, size); }

char *xt_arena_text(xt_arena *arena, const char *text, size_t size) {
  char *copy = size == SIZE_MAX ? NULL : xt_arena_alloc(arena, size + 1, 1);
  if (copy && size) memcpy(copy, text, size);
  return copy;
}

void xt_arena_free(xt_arena *arena) {
  for (struct xt_arena_chunk *next, *at = arena->chunks; at; at = next) {
    next = at->next;
    xt_allowance_return(arena->allowance, at->size);
    free(at->data);
    at->next = unused;
    unused = at;
  }
  arena->chunks = NULL;
}
