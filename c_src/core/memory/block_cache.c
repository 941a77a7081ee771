#include "core/memory/block_cache.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

enum {
  ROOM = 8,
  MOST = 32 << 20, /* bytes of all blocks together */
  SLICE = 4 << 20, /* a few MiB are given back in about a millisecond */
  TOO_LARGE = 2    /* times what is wanted */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static xt_block *spares[ROOM]; /* the oldest first */
static size_t count, aged;     /* so many were here at the last tick */

static size_t capacity(xt_block *block) {
  return block->map_size - (size_t)(xt_block_data(block) - (char *)block->map);
}

void xt_block_free(xt_block *block) {
  char *data = xt_block_data(block);
  for (size_t at = 0, size = capacity(block); at < size; at += SLICE)
    madvise(data + at, size - at < SLICE ? size - at : SLICE, MADV_DONTNEED);
  munmap(block->map, block->map_size);
}

static void free_later(xt_reapable *self) { xt_block_free((xt_block *)self); }

/* Who asks for a block may be on a scheduler: the reaper gives back what does not suit. */
static void give_back(xt_block **gone, size_t n) {
  while (n--) {
    gone[n]->reapable.run = free_later;
    if (xt_reaper_start()) xt_reaper_push(&gone[n]->reapable);
    else xt_block_free(gone[n]);
  }
}

/* With the lock held. */
static xt_block *take_out(size_t i) {
  xt_block *block = spares[i];
  if (i < aged) aged--;
  for (count--; i < count; i++) spares[i] = spares[i + 1];
  return block;
}

static size_t total(void) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) bytes += capacity(spares[i]);
  return bytes;
}

/* Gives back what was here at the last tick already; true while there is something left. */
static bool grow_old(void) {
  xt_block *gone[ROOM];
  size_t n = 0;
  pthread_mutex_lock(&lock);
  while (aged) gone[n++] = take_out(0);
  aged = count;
  bool left = count > 0;
  pthread_mutex_unlock(&lock);
  give_back(gone, n);
  return left;
}

void xt_block_cache_put(xt_block *block) {
  xt_block *gone[ROOM];
  size_t n = 0;
  if (capacity(block) > MOST || !xt_reaper_start()) { /* nobody would see to it that it goes */
    xt_block_free(block);
    return;
  }
  pthread_mutex_lock(&lock);
  while (count == ROOM || total() + capacity(block) > MOST) gone[n++] = take_out(0);
  spares[count++] = block;
  pthread_mutex_unlock(&lock);
  give_back(gone, n);
  xt_reaper_tick(grow_old);
}

xt_block *xt_block_cache_take(size_t size) {
  xt_block *gone[ROOM], *found = NULL;
  size_t n = 0, best = ROOM;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < count; i++)
    if (capacity(spares[i]) >= size && capacity(spares[i]) / TOO_LARGE <= size &&
        (best == ROOM || capacity(spares[i]) < capacity(spares[best])))
      best = i;
  if (best < ROOM) found = take_out(best);
  while (!found && count) gone[n++] = take_out(0);
  pthread_mutex_unlock(&lock);
  give_back(gone, n);
  return found;
}
