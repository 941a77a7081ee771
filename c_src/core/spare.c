#include "spare.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

enum {
  ROOM = 8,
  MOST = 32 << 20, /* bytes of all blocks together */
  HUGE_PAGE = 2 << 20,
  SLICE = 4 << 20 /* a few MiB are given back in about a millisecond */
};

typedef struct {
  xt_block block;
  bool old;
} spare;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static spare spares[ROOM]; /* the oldest first */
static size_t count;

static size_t capacity(xt_block block) { return block.map_size - (size_t)(block.data - (char *)block.map); }

void xt_block_free(xt_block block) {
  for (size_t at = 0, size = capacity(block); at < size; at += SLICE)
    madvise(block.data + at, size - at < SLICE ? size - at : SLICE, MADV_DONTNEED);
  munmap(block.map, block.map_size);
}

/* With the lock held. */
static xt_block take_out(size_t i) {
  xt_block block = spares[i].block;
  for (count--; i < count; i++) spares[i] = spares[i + 1];
  return block;
}

static size_t total(void) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) bytes += capacity(spares[i].block);
  return bytes;
}

bool xt_spare_put(xt_block block) {
  xt_block gone[ROOM];
  size_t n = 0;
  if (capacity(block) > MOST) return false;
  pthread_mutex_lock(&lock);
  while (count == ROOM || total() + capacity(block) > MOST) gone[n++] = take_out(0);
  spares[count++] = (spare){block, false};
  pthread_mutex_unlock(&lock);
  while (n--) xt_block_free(gone[n]);
  return true;
}

/* What the new owner does not need. */
static xt_block shorten(xt_block block, size_t size) {
  size_t needed = (size + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
  if (capacity(block) <= needed) return block;
  munmap(block.data + needed, capacity(block) - needed);
  block.map_size -= capacity(block) - needed;
  return block;
}

bool xt_spare_take(size_t size, xt_block *out) {
  xt_block gone[ROOM];
  size_t n = 0, best = ROOM;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < count; i++)
    if (capacity(spares[i].block) >= size && (best == ROOM || capacity(spares[i].block) < capacity(spares[best].block)))
      best = i;
  bool found = best < ROOM;
  if (found) *out = take_out(best);
  while (!found && count) gone[n++] = take_out(0);
  pthread_mutex_unlock(&lock);
  while (n--) xt_block_free(gone[n]);
  if (found) *out = shorten(*out, size);
  return found;
}

bool xt_spare_age(void) {
  xt_block gone[ROOM];
  size_t n = 0;
  pthread_mutex_lock(&lock);
  while (count && spares[0].old) gone[n++] = take_out(0);
  for (size_t i = 0; i < count; i++) spares[i].old = true;
  bool left = count > 0;
  pthread_mutex_unlock(&lock);
  while (n--) xt_block_free(gone[n]);
  return left;
}
