#include "core/memory/block_cache.h"

#include "core/os/background.h"
#include "core/os/pages.h"
#include "core/os/thread.h"

enum {
  MAX_BLOCKS = 8,
  MAX_BYTES = 32 << 20, /* of all blocks together */
  MAX_RATIO = 2         /* of a block's capacity to the requested size */
};

static xt_mutex lock = XT_MUTEX_INIT;
static xt_block *blocks[MAX_BLOCKS]; /* oldest first */
static size_t count;
static size_t expiring; /* blocks that were already here at the last tick */

static size_t capacity(xt_block *block) {
  return block->map_size - (size_t)(xt_block_data(block) - (char *)block->map);
}

void xt_block_free(xt_block *block) { xt_pages_unmap_in_slices(block->map, block->map_size); }

static void free_reapable(xt_reapable *self) { xt_block_free((xt_block *)self); }

/* The caller may be on a normal scheduler, so the reaper frees the blocks. */
static void free_later(xt_block **evicted, size_t n) {
  while (n--) {
    evicted[n]->reapable.run = free_reapable;
    if (xt_reaper_start()) xt_reaper_push(&evicted[n]->reapable);
    else xt_block_free(evicted[n]);
  }
}

/* The lock must be held. */
static xt_block *remove_block(size_t i) {
  xt_block *block = blocks[i];
  if (i < expiring) expiring--;
  for (count--; i < count; i++) blocks[i] = blocks[i + 1];
  return block;
}

static size_t total(void) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) bytes += capacity(blocks[i]);
  return bytes;
}

/* Frees the blocks that were already here at the last tick. Returns whether any block remains. */
static bool expire(void) {
  xt_block *evicted[MAX_BLOCKS];
  size_t n = 0;
  xt_mutex_lock(&lock);
  while (expiring) evicted[n++] = remove_block(0);
  expiring = count;
  bool remaining = count > 0;
  xt_mutex_unlock(&lock);
  free_later(evicted, n);
  return remaining;
}

void xt_block_cache_put(xt_block *block) {
  xt_block *evicted[MAX_BLOCKS];
  size_t n = 0;
  /* without the reaper blocks would never expire */
  if (capacity(block) > MAX_BYTES || !xt_background_enabled(XT_BACKGROUND_block_cache) || !xt_reaper_start()) {
    xt_block_free(block);
    return;
  }
  xt_mutex_lock(&lock);
  while (count == MAX_BLOCKS || total() + capacity(block) > MAX_BYTES) evicted[n++] = remove_block(0);
  blocks[count++] = block;
  xt_mutex_unlock(&lock);
  free_later(evicted, n);
  xt_reaper_tick(XT_TICK_BLOCK_CACHE, expire);
}

xt_block *xt_block_cache_take(size_t size) {
  xt_block *evicted[MAX_BLOCKS], *found = NULL;
  size_t n = 0, best = MAX_BLOCKS;
  xt_mutex_lock(&lock);
  for (size_t i = 0; i < count; i++)
    if (capacity(blocks[i]) >= size && capacity(blocks[i]) / MAX_RATIO <= size &&
        (best == MAX_BLOCKS || capacity(blocks[i]) < capacity(blocks[best])))
      best = i;
  if (best < MAX_BLOCKS) found = remove_block(best);
  while (!found && count) evicted[n++] = remove_block(0);
  xt_mutex_unlock(&lock);
  free_later(evicted, n);
  return found;
}
