#include "core/memory/prefault.h"

#include <time.h>

#include "check.h"
#include "core/memory/memory.h"
#include "core/os/background.h"

/* Prefaulting keeps what the memory holds. Regions that are dropped or canceled are freed, also those whose turn has
 * not come yet. */
static void keeps_contents_and_frees_regions(void) {
  int64_t before = atomic_load(&xt_memory_live.bytes);
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < 20; i++) { /* more than the queue holds */
      xt_region *region = xt_region_new((size_t)(5 << 20) + (size_t)i * 777, (uint64_t)i * 64);
      region->data[0] = region->data[region->size - 1] = (uint8_t)i;
      xt_prefault(region, 0, region->size);
      CHECK(region->data[0] == i && region->data[region->size - 1] == i);
      if (i % 2) xt_prefault_cancel(region);
      xt_region_drop(region);
    }
  }
  for (int i = 0; i < 10000 && atomic_load(&xt_memory_live.bytes) > before; i++) {
    xt_background_settle(1);
    xt_reaper_drain(1000);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
  CHECK(atomic_load(&xt_memory_live.bytes) == before);
}

int main(void) { return RUN_TESTS("prefault", keeps_contents_and_frees_regions); }
