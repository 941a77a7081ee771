/* An arena for the fuzz targets, linked instead of core/base/arena.c: every piece is a separate allocation of exactly
 * its size, so that the sanitizer reports an access between two pieces. Limits count as in the arena it replaces. */
#include <sanitizer/lsan_interface.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/arena.h"

struct xt_arena_chunk {
  struct xt_arena_chunk *next;
  void *data;
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
  enum { ALIGN = _Alignof(max_align_t) };
  size_t exact, bytes;
  if (__builtin_mul_overflow(count, size, &exact) || exact > SIZE_MAX / 2) return NULL;
  bytes = exact ? (exact + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
  if (arena->limit && (arena->used > arena->limit || bytes > arena->limit - arena->used)) {
    arena->exceeded = true;
    return NULL;
  }
  void *data = calloc(1, exact ? exact : 1);
  if (!data) return NULL;
  struct xt_arena_chunk *piece = take_chunk();
  *piece = (struct xt_arena_chunk){arena->chunks, data};
  arena->chunks = piece;
  arena->used += bytes;
  return data;
}

char *xt_arena_text(xt_arena *arena, const char *text, size_t size) {
  char *copy = size == SIZE_MAX ? NULL : xt_arena_alloc(arena, size + 1, 1);
  if (copy && size) memcpy(copy, text, size);
  return copy;
}

void xt_arena_free(xt_arena *arena) {
  for (struct xt_arena_chunk *next, *at = arena->chunks; at; at = next) {
    next = at->next;
    free(at->data);
    at->next = unused;
    unused = at;
  }
  *arena = (xt_arena){0};
}
