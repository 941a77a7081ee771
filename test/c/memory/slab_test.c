#include "core/memory/slab.h"

#include <string.h>

#include "check.h"
#include "core/memory/memory.h"

enum { COUNT = 400, SIZE = 256 };

static int64_t live_bytes(void) { return atomic_load(&xt_memory_live.bytes); }

/* Takes regions, each with other bytes. Returns how many of them are parts. */
static size_t take_all(xt_slab *slab, xt_region **regions, size_t count, size_t size) {
  size_t parts = 0;
  for (size_t i = 0; i < count; i++) {
    regions[i] = xt_slab_take(slab, size);
    CHECK(regions[i] && regions[i]->size == size && (uintptr_t)regions[i]->data % 64 == 0);
    memset(regions[i]->data, (int)(i % 251), size);
    parts += regions[i]->is_part;
  }
  return parts;
}

static void check_bytes(xt_region *const *regions, size_t count) {
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; k < regions[i]->size; k++) CHECK(regions[i]->data[k] == i % 251);
}

static void drop_all(xt_region **regions, size_t count) {
  for (size_t i = 0; i < count; i++) xt_region_drop(regions[i]);
}

static void small_regions_are_parts(void) {
  static const size_t sizes[] = {1, 8, 63, 64, 65, SIZE, 1000};
  xt_region *regions[COUNT];
  for (size_t i = 0; i < COUNT_OF(sizes); i++) {
    xt_slab slab = {NULL};
    CHECK(take_all(&slab, regions, COUNT, sizes[i]) > COUNT - 20);
    check_bytes(regions, COUNT);
    xt_slab_free(&slab);
    check_bytes(regions, COUNT);
    drop_all(regions, COUNT);
    CHECK(live_bytes() == 0);
  }
}

static void regions_of_any_size(void) {
  xt_region *regions[COUNT];
  xt_slab slab = {NULL};
  srand(1);
  for (size_t i = 0; i < COUNT; i++) {
    size_t size = (size_t)(rand() % (1 << rand() % 16));
    regions[i] = xt_slab_take(&slab, size);
    CHECK(regions[i] && regions[i]->size == size && !(regions[i]->is_part && size > XT_SLAB_MAX / 8));
    memset(regions[i]->data, (int)(i % 251), size);
    if (i) CHECK(regions[i]->data != regions[i - 1]->data);
  }
  check_bytes(regions, COUNT);
  xt_slab_free(&slab);
  drop_all(regions, COUNT);
}

static void large_regions_are_not_parts(void) {
  xt_region *regions[20];
  xt_slab slab = {NULL};
  CHECK(take_all(&slab, regions, 20, XT_SLAB_MAX / 8 + 1) == 0 && !slab.region);
  drop_all(regions, 20);
  CHECK(!xt_slab_take(&slab, SIZE_MAX) && live_bytes() == 0);
}

/* What is allocated is at most twice what the regions so far have taken: their bytes, rounded, and their xt_region. */
static void a_slab_is_not_larger_than_what_came_before(void) {
  static const size_t sizes[] = {0, 1, SIZE, 1500};
  xt_region *regions[COUNT];
  for (size_t i = 0; i < COUNT_OF(sizes); i++) {
    xt_slab slab = {NULL};
    int64_t cost = (int64_t)((sizes[i] / 64 + 1) * 64 + sizeof(xt_region));
    for (int64_t n = 0; n < COUNT; n++) {
      regions[n] = xt_slab_take(&slab, sizes[i]);
      CHECK(live_bytes() <= 2 * (n + 1) * cost + 64 && live_bytes() <= (n + 1) * cost * 9 / 8 + XT_SLAB_MAX);
    }
    xt_slab_free(&slab);
    drop_all(regions, COUNT);
  }
}

static void a_survivor_keeps_only_its_slab(void) {
  xt_region *regions[COUNT];
  for (size_t survivor = 0; survivor < COUNT; survivor += 33) {
    xt_slab slab = {NULL};
    take_all(&slab, regions, COUNT, SIZE);
    xt_slab_free(&slab);
    for (size_t i = 0; i < COUNT; i++)
      if (i != survivor) xt_region_drop(regions[i]);
    CHECK(live_bytes() >= SIZE && live_bytes() <= XT_SLAB_MAX);
    for (size_t k = 0; k < SIZE; k++) CHECK(regions[survivor]->data[k] == survivor % 251);
    xt_region_drop(regions[survivor]);
    CHECK(live_bytes() == 0);
  }
}

/* A full slab is freed with its last part, while the next one is in use. */
static void slabs_are_freed_one_by_one(void) {
  xt_region *regions[COUNT];
  xt_slab slab = {NULL};
  take_all(&slab, regions, COUNT, SIZE);
  int64_t before = live_bytes();
  drop_all(regions, COUNT / 2);
  CHECK(live_bytes() < before * 2 / 3);
  drop_all(regions + COUNT / 2, COUNT / 2);
  CHECK(live_bytes() == (int64_t)slab.region->size);
  xt_slab_free(&slab);
  CHECK(live_bytes() == 0);
}

static void keeps_to_the_budget(void) {
  xt_region *regions[COUNT], *alone;
  xt_slab slab = {NULL};
  size_t n = 0;
  take_all(&slab, regions, COUNT / 2, SIZE);
  for (n = COUNT / 2; slab.to - slab.from >= SIZE + sizeof(xt_region); n++) take_all(&slab, &regions[n], 1, SIZE);
  xt_memory_set_budget(live_bytes() + SIZE); /* too little for a slab */
  alone = xt_slab_take(&slab, SIZE);
  CHECK(alone && !alone->is_part && xt_memory_refused() == XT_REFUSED_NOT);
  CHECK(!xt_slab_take(&slab, SIZE) && xt_memory_refused() == XT_REFUSED_BUDGET);
  CHECK(!xt_slab_take(&slab, SIZE));
  xt_memory_set_budget(INT64_MAX);
  CHECK(take_all(&slab, &regions[n], 1, SIZE) == 1);
  xt_slab_free(&slab);
  xt_region_drop(alone);
  drop_all(regions, n + 1);
}

int main(void) {
  return RUN_TESTS("slab", small_regions_are_parts, regions_of_any_size, large_regions_are_not_parts,
                   a_slab_is_not_larger_than_what_came_before, a_survivor_keeps_only_its_slab,
                   slabs_are_freed_one_by_one, keeps_to_the_budget);
}
