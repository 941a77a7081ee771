#include "core/memory/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory/reaper.h"
#include "core/os/pages.h"
#include "core/os/thread.h"

typedef struct xt_arena_chunk {
  xt_reapable reapable; /* the first member */
  struct xt_arena_chunk *next;
  size_t used, size;
  size_t dirty; /* bytes from the beginning on that may not be zero */
  size_t ticks; /* since it was kept */
  uint64_t data[];
} chunk;

/* Each chunk is twice as large as the one before it, up to LAST_CHUNK, unless more is asked for. Chunks of MAPPED bytes
 * and more are mapped, in whole huge pages: without these, building the tree of ten thousand tensors spends a quarter
 * of its time in page faults. */
enum { FIRST_CHUNK = 4096, MAPPED = 1 << 20, LAST_CHUNK = 2 << 20, ALIGN = _Alignof(uint64_t) };

static size_t bytes_of(const chunk *c) { return sizeof *c + c->size; }

static void destroy(chunk *c) {
  if (c->size < MAPPED) free(c);
  else xt_pages_unmap_in_slices(c, bytes_of(c));
}

/* ---- Kept chunks ---- */

/* Chunks of MIN_KEPT bytes and more are kept for the next arena, each for up to MAX_TICKS (three seconds). Otherwise a
 * program that opens many files would map and clear the same pages for each of them: the C library maps large chunks,
 * too. */
enum { MAX_BYTES = 48 << 20, MAX_CHUNKS = 32, MIN_KEPT = 64 << 10, MAX_TICKS = 6 };
static xt_mutex lock = XT_MUTEX_INIT;
static struct {
  chunk *first; /* the latest one */
  size_t count, bytes;
} kept;

/* Takes a chunk of this size. Returns NULL if there is none. */
static chunk *take_kept(size_t bytes) {
  xt_mutex_lock(&lock);
  chunk **at = &kept.first, *c;
  while ((c = *at) && bytes_of(c) != bytes) at = &c->next;
  if (c) *at = c->next, kept.bytes -= bytes, kept.count--;
  xt_mutex_unlock(&lock);
  if (c) c->used = 0;
  return c;
}

/* Takes all chunks from this place on, which are the oldest ones. The lock must be held. */
static chunk *take_rest(chunk **at) {
  chunk *rest = *at;
  for (const chunk *c = rest; c; c = c->next) kept.bytes -= bytes_of(c), kept.count--;
  *at = NULL;
  return rest;
}

static void destroy_reapable(xt_reapable *self) { destroy((chunk *)self); }

/* The caller may be on a normal scheduler, so the reaper frees the chunks. */
static void destroy_later(chunk *first) {
  for (chunk *next; first; first = next) {
    next = first->next;
    first->reapable.run = destroy_reapable;
    xt_reaper_push(&first->reapable);
  }
}

/* Frees the chunks that were kept for long. Returns whether there are any left. */
static bool expire(void) {
  xt_mutex_lock(&lock);
  for (chunk *c = kept.first; c; c = c->next) c->ticks++;
  chunk **at = &kept.first;
  while (*at && (*at)->ticks < MAX_TICKS) at = &(*at)->next;
  chunk *expired = take_rest(at);
  bool remaining = kept.first;
  xt_mutex_unlock(&lock);
  destroy_later(expired);
  return remaining;
}

static void keep(chunk *c) {
  if (c->used > c->dirty) c->dirty = c->used;
  c->ticks = 0;
  xt_mutex_lock(&lock);
  c->next = kept.first;
  kept.first = c;
  kept.count++;
  kept.bytes += bytes_of(c);
  chunk *excess = NULL;
  if (kept.count > MAX_CHUNKS || kept.bytes > MAX_BYTES) {
    chunk **at = &kept.first;
    size_t bytes = 0;
    for (size_t n = 0; *at && n < MAX_CHUNKS && bytes + bytes_of(*at) <= MAX_BYTES; n++, at = &(*at)->next)
      bytes += bytes_of(*at);
    excess = take_rest(at);
  }
  xt_mutex_unlock(&lock);
  destroy_later(excess);
  xt_reaper_tick(XT_TICK_ARENA, expire);
}

/* Frees all of them, now. */
static void drop_kept(void) {
  xt_mutex_lock(&lock);
  chunk *all = take_rest(&kept.first);
  xt_mutex_unlock(&lock);
  for (chunk *next; all; all = next) {
    next = all->next;
    destroy(all);
  }
}

/* ---- Chunks ---- */

static chunk *new_chunk(size_t room) {
  size_t size = sizeof(chunk) + room;
  chunk *made = room < MIN_KEPT ? NULL : take_kept(size);
  if (made) return made;
  if (room < MAPPED) return calloc(1, size);
  made = xt_pages_map(size);
  if (!made) {
    drop_kept();
    made = xt_pages_map(size);
  }
  if (made) xt_pages_prefer_huge(made, size);
  return made;
}

/* Without the reaper, chunks would be kept forever. */
static void free_chunk(chunk *c) {
  if (c->size < MIN_KEPT || bytes_of(c) > MAX_BYTES || !xt_reaper_start()) destroy(c);
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
  size_t bytes = kept.bytes;
  xt_mutex_unlock(&lock);
  return bytes;
}
