#include "core/memory/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory/reaper.h"
#include "core/os/pages.h"
#include "core/os/thread.h"

typedef struct xt_arena_chunk {
  struct xt_arena_chunk *next;
  size_t used, size;
  size_t dirty; /* bytes from the beginning on that may not be zero */
  uint64_t data[];
} chunk;

/* Each chunk is twice as large as the one before it, up to LAST_CHUNK, unless more is asked for. Chunks of MAPPED bytes
 * and more are mapped, in whole huge pages: without these, building the tree of ten thousand tensors spends a quarter
 * of its time in page faults. */
enum { FIRST_CHUNK = 4096, MAPPED = 1 << 20, LAST_CHUNK = 2 << 20, ALIGN = _Alignof(uint64_t) };

/* Up to KEPT bytes of chunks, the latest first, are kept for the next arena, for about three seconds. Otherwise a
 * program that opens many files would map and clear the same pages for each of them: the C library maps large chunks,
 * too. */
enum { KEPT = 48 << 20, MIN_KEPT = 64 << 10, MAX_IDLE = 6 };
static chunk *kept;
static size_t kept_bytes;
static unsigned idle; /* ticks since a chunk was taken or kept */
static xt_mutex lock = XT_MUTEX_INIT;

static size_t bytes_of(const chunk *c) { return sizeof *c + c->size; }

static chunk *take_kept(size_t bytes) {
  xt_mutex_lock(&lock);
  chunk **at = &kept, *c;
  while ((c = *at) && bytes_of(c) != bytes) at = &c->next;
  if (c) *at = c->next, kept_bytes -= bytes;
  idle = 0;
  xt_mutex_unlock(&lock);
  if (c) c->used = 0;
  return c;
}

static void destroy(chunk *c) {
  if (c->size < MAPPED) free(c);
  else xt_pages_unmap_in_slices(c, bytes_of(c));
}

static void destroy_all(chunk *first) {
  for (chunk *next; first; first = next) {
    next = first->next;
    destroy(first);
  }
}

/* Frees all chunks if none was used for long. Returns whether there are any left. */
static bool expire(void) {
  chunk *expired = NULL;
  xt_mutex_lock(&lock);
  if (++idle >= MAX_IDLE) expired = kept, kept = NULL, kept_bytes = 0;
  bool remaining = kept;
  xt_mutex_unlock(&lock);
  destroy_all(expired);
  return remaining;
}

/* Takes the chunks off the list that are too many, the oldest ones. The lock must be held. */
static chunk *take_excess(void) {
  if (kept_bytes <= KEPT) return NULL;
  chunk **at = &kept;
  kept_bytes = 0;
  while (bytes_of(*at) <= KEPT - kept_bytes) kept_bytes += bytes_of(*at), at = &(*at)->next;
  chunk *excess = *at;
  *at = NULL;
  return excess;
}

static void keep(chunk *c) {
  if (c->used > c->dirty) c->dirty = c->used;
  xt_mutex_lock(&lock);
  c->next = kept;
  kept = c;
  kept_bytes += bytes_of(c);
  idle = 0;
  chunk *excess = take_excess();
  xt_mutex_unlock(&lock);
  destroy_all(excess);
  xt_reaper_tick(XT_TICK_ARENA, expire);
}

static chunk *new_chunk(size_t room) {
  size_t size = sizeof(chunk) + room;
  chunk *made = room < MIN_KEPT ? NULL : take_kept(size);
  if (made) return made;
  if (room < MAPPED) return calloc(1, size);
  made = xt_pages_map(size);
  if (made) xt_pages_prefer_huge(made, size);
  return made;
}

/* Without the reaper, chunks would be kept forever. */
static void free_chunk(chunk *c) {
  if (c->size < MIN_KEPT || bytes_of(c) > KEPT || !xt_reaper_start()) destroy(c);
  else keep(c);
}

/* Returns the size of a chunk that has at least this many bytes. */
static size_t room_for(size_t bytes) {
  return bytes < MAPPED ? bytes : (bytes + sizeof(chunk) + LAST_CHUNK - 1) / LAST_CHUNK * LAST_CHUNK - sizeof(chunk);
}

/* Takes memory from the first chunk, or from a new one. Sets *dirty to how much of it may not be zero. */
static void *take(xt_arena *arena, size_t bytes, size_t *dirty) {
  if (bytes > SIZE_MAX / 2) return NULL;
  bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
  if (!bytes) bytes = ALIGN;
  chunk *head = arena->chunks;
  if (!head || head->size - head->used < bytes) {
    size_t room = head ? 2 * head->size : FIRST_CHUNK;
    if (room < arena->expected) room = arena->expected;
    if (room > LAST_CHUNK - sizeof(chunk)) room = LAST_CHUNK - sizeof(chunk);
    room = room_for(room < bytes ? bytes : room);
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
  *dirty = head->used < head->dirty ? head->dirty - head->used : 0;
  if (*dirty > bytes) *dirty = bytes;
  head->used += bytes;
  return piece;
}

/* Memory that was used before is cleared when it is handed out, not the whole chunk at once: then it is in the caches
 * when the caller writes to it. */
void *xt_arena_alloc(xt_arena *arena, size_t count, size_t size) {
  size_t bytes, dirty;
  if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
  void *piece = take(arena, bytes, &dirty);
  if (piece && dirty) memset(piece, 0, dirty);
  return piece;
}

void *xt_arena_alloc_uncleared(xt_arena *arena, size_t size) {
  size_t dirty;
  return take(arena, size, &dirty);
}

char *xt_arena_text(xt_arena *arena, const char *text, size_t size) {
  char *copy = size == SIZE_MAX ? NULL : xt_arena_alloc_uncleared(arena, size + 1);
  if (!copy) return NULL;
  if (size) memcpy(copy, text, size);
  copy[size] = 0;
  return copy;
}

void xt_arena_free(xt_arena *arena) {
  for (chunk *next, *at = arena->chunks; at; at = next) {
    next = at->next;
    xt_allowance_return(arena->allowance, bytes_of(at));
    free_chunk(at);
  }
  arena->chunks = NULL;
}

size_t xt_arena_kept_bytes(void) {
  xt_mutex_lock(&lock);
  size_t bytes = kept_bytes;
  xt_mutex_unlock(&lock);
  return bytes;
}
