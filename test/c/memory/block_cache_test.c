#include "core/memory/block_cache.h"

#include <string.h>
#include <time.h>

#include "check.h"
#include "core/memory/memory.h"
#include "core/os/background.h"

enum { MIB = 1 << 20 };

static void a_freed_block_serves_the_next_request_that_fits(void) {
  char *first = xt_memory_alloc(9 * MIB);
  memset(first, 1, 9 * MIB);
  xt_memory_free(first);
  char *second = xt_memory_alloc(6 * MIB);
  CHECK(second == first);
  memset(second, 2, 6 * MIB);
  xt_memory_free(second);
  char *third = xt_memory_alloc(9 * MIB); /* the block still has its full size */
  CHECK(third == first);
  memset(third, 3, 9 * MIB);
  xt_memory_free(third);
}

/* A request that no cached block fits empties the cache, so that the cache does not add to the memory in use. */
static void a_request_that_fits_none_empties_the_cache(void) {
  xt_memory_free(xt_memory_alloc(9 * MIB));
  char *smaller = xt_memory_alloc(3 * MIB);
  CHECK(!xt_block_cache_take(9 * MIB));
  memset(smaller, 4, 3 * MIB);
  xt_memory_free(smaller);
}

static void more_blocks_than_the_cache_holds(void) {
  char *blocks[12];
  for (int i = 0; i < 12; i++) blocks[i] = xt_memory_alloc((size_t)(3 + i) * MIB);
  for (int i = 0; i < 12; i++) xt_memory_free(blocks[i]);
  for (int i = 0; i < 12; i++) {
    size_t size = (size_t)(14 - i) * MIB;
    blocks[i] = xt_memory_alloc(size);
    memset(blocks[i], i, size);
  }
  for (int i = 0; i < 12; i++) CHECK(blocks[i][0] == i && blocks[i][(size_t)(14 - i) * MIB - 1] == i);
  for (int i = 0; i < 12; i++) xt_memory_free(blocks[i]);
}

static void very_large_blocks_are_not_cached(void) {
  char *large = xt_memory_alloc(100 * MIB);
  CHECK(!xt_block_cache_take(2 * MIB));
  xt_memory_free(large);
  CHECK(!xt_block_cache_take(100 * MIB));
}

static void nothing_is_cached_while_it_is_turned_off(void) {
  xt_background_enable(XT_BACKGROUND_block_cache, false);
  xt_memory_free(xt_memory_alloc(2 * MIB));
  xt_background_enable(XT_BACKGROUND_block_cache, true);
  CHECK(!xt_block_cache_take(2 * MIB));
}

static void blocks_are_freed_after_about_a_second(void) {
  xt_memory_free(xt_memory_alloc(2 * MIB));
  nanosleep(&(struct timespec){2, 0}, NULL);
  CHECK(!xt_block_cache_take(2 * MIB));
}

int main(void) {
  return RUN_TESTS("block_cache", a_freed_block_serves_the_next_request_that_fits,
                   a_request_that_fits_none_empties_the_cache, more_blocks_than_the_cache_holds,
                   very_large_blocks_are_not_cached, nothing_is_cached_while_it_is_turned_off,
                   blocks_are_freed_after_about_a_second);
}
