#include "core/memory/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/os/pages.h"
#include "core/os/thread.h"

typedef struct xt_arena_chunk {
  struct xt_arena_chunk *next;
  size_t used, size;
  uint64_t data[];
} chunk;

/* Each chunk is twice as large as the one before it, up to LAST_CHUNK. Chunks of MAPPED bytes and more are mapped with
 * huge pages: without them, building the tree of ten thousand tensors spends a quarter of its time in page faults. */
enum { FIRST_CHUNK = 4096, MAPPED = 1 << 20, LAST_CHUNK = 2 << 20, ALIGN = _Alignof(uint64_t) };

/* Up to KEPT chunks of LAST_CHUNK bytes are kept for the next arena. Otherwise a program that opens many files would
 * map and clear the same pages for each of them. */
enum { KEPT = 4 };
static chunk *kept;
static int kept_count;
static xt_mutex lock = XT_MUTEX_INIT;

static chunk *take_kept(void) {
  xt_mutex_lock(&lock);
  chunk *c = kept;
  if (c) kept = c->next, kept_count--;
  xt_mutex_unlock(&lock);
  if (c) memset(c->data, 0, c->used);
  if (c) c->used = 0;
  return c;
}

static bool keep(chunk *c) {
  xt_mutex_lock(&lock);
  bool room = kept_count < KEPT;
  if (room) {
    c->next = kept;
    kept = c;
    kept_count++;
  }
  xt_mutex_unlock(&lock);
  return room;
}

static chunk *new_chunk(size_t room) {
  size_t size = sizeof(chunk) + room;
  if (room < MAPPED) return calloc(1, size);
  chunk *made = size == LAST_CHUNK ? take_kept() : NULL;
  if (made) return made;
  made = xt_pages_map(size);
  if (made) xt_pages_prefer_huge(made, size);
  return made;
}

static void free_chunk(chunk *c) {
  if (c->size < MAPPED) free(c);
  else if (sizeof *c + c->size != LAST_CHUNK || !keep(c)) xt_pages_unmap(c, sizeof *c + c->size);
}

void *xt_arena_alloc(xt_arena *arena, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2) return NULL;
  bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
  if (!bytes) bytes = ALIGN;
  chunk *head = arena->chunks;
  if (!head || head->size - head->used < bytes) {
    size_t room = head ? 2 * head->size : FIRST_CHUNK;
    if (room >= LAST_CHUNK) room = LAST_CHUNK - sizeof(chunk); /* chunk and header fill whole huge pages */
    if (room < bytes) room = bytes;
    if (!xt_allowance_take(arena->allowance, sizeof(chunk) + room)) return NULL;
    head = new_chunk(room);
    if (!head) {
      xt_allowance_return(arena->allowance, sizeof(chunk) + room);
      return NULL;
    }
    head->next = arena->chunks;
    head->size = room;
    arena->chunks = head;
  }
  void *piece = (char *)head->data + head->used;
  head->used += bytes;
  return piece;
}

char *xt_arena_text(xt_arena *arena, const char *text, size_t size) {
  char *copy = size == SIZE_MAX ? NULL : xt_arena_alloc(arena, size + 1, 1);
  if (copy && size) memcpy(copy, text, size);
  return copy;
}

void xt_arena_free(xt_arena *arena) {
  for (chunk *next, *at = arena->chunks; at; at = next) {
    next = at->next;
    xt_allowance_return(arena->allowance, sizeof *at + at->size);
    free_chunk(at);
  }
  arena->chunks = NULL;
}
