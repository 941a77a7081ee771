#include "core/memory/region.h"

#include <string.h>

#include "check.h"
#include "core/memory/memory.h"

static int64_t live_bytes(void) { return atomic_load(&xt_memory_live.bytes); }

static int released;
static void count_release(xt_region *self) {
  CHECK(self->owner == &released);
  released++;
}

/* The address and the file offset are equal modulo 64, and modulo a page for large regions. */
static void addresses_match_the_file_offset(void) {
  static const size_t sizes[] = {1, 100, 4095, 4096, 100000, 1 << 20, 3 << 20};
  static const uint64_t offsets[] = {0, 1, 63, 64, 4095, 4096, 123456789};
  int64_t before = live_bytes();
  for (size_t i = 0; i < COUNT_OF(sizes); i++)
    for (size_t k = 0; k < COUNT_OF(offsets); k++) {
      xt_region *region = xt_region_new(sizes[i], offsets[k]);
      uint64_t modulus = sizes[i] >= 1 << 20 ? 4096 : 64;
      CHECK(region && region->size == sizes[i]);
      CHECK((uintptr_t)region->data % modulus == offsets[k] % modulus);
      memset(region->data, 1, region->size);
      CHECK(live_bytes() > before);
      xt_region_drop(region);
      CHECK(live_bytes() == before);
    }
}

static void the_last_reference_frees(void) {
  char bytes[10];
  released = 0;
  xt_region *region = xt_region_foreign(bytes, sizeof bytes, &released, count_release);
  CHECK(region && region->data == (uint8_t *)bytes && region->size == sizeof bytes);
  CHECK(xt_region_keep(region) == region);
  xt_region_drop(region);
  CHECK(released == 0);
  xt_region_drop(region);
  CHECK(released == 1);
  xt_region_drop(NULL);
}

/* The parts keep the memory that they are views of, and share one block. */
static void views_keep_their_memory(void) {
  char bytes[10];
  int64_t before = live_bytes();
  released = 0;
  xt_region *memory = xt_region_foreign(bytes, sizeof bytes, &released, count_release);
  xt_region *views = xt_region_new_views(memory, 2);
  CHECK(views && live_bytes() == before);
  xt_region *first = xt_region_part(views, 0, memory->data, 4), *second = xt_region_part(views, 1, memory->data + 4, 6);
  CHECK(first != second && second->data == (uint8_t *)bytes + 4 && second->size == 6);
  xt_region_drop(memory);
  xt_region_drop(views);
  xt_region_drop(first);
  CHECK(released == 0);
  xt_region_drop(second);
  CHECK(released == 1);
}

static void the_reaper_frees_later(void) {
  char bytes[10];
  released = 0;
  xt_region *region = xt_region_foreign(bytes, sizeof bytes, &released, count_release);
  CHECK(xt_reaper_start());
  xt_region_drop_later(xt_region_keep(region));
  CHECK(xt_reaper_drain(10000) && released == 0);
  xt_region_drop_later(region);
  CHECK(xt_reaper_drain(10000) && released == 1);
  xt_region_drop_later(NULL);
}

static void keeps_to_the_budget(void) {
  int64_t before = live_bytes();
  xt_memory_set_budget(before + 1000);
  CHECK(!xt_region_new(2000, 0) && xt_memory_refused() == XT_REFUSED_BUDGET);
  xt_memory_set_budget(INT64_MAX);
  CHECK(!xt_region_new(SIZE_MAX, 1) && live_bytes() == before);
}

static void parts_keep_their_slab(void) {
  for (size_t size = 0; size < 40; size++) {
    xt_region *slab = xt_region_new_slab(size, 5, 3), *parts[3];
    CHECK(slab && (uintptr_t)slab->data % 64 == 5);
    memset(slab->data, 7, size);
    for (size_t i = 0; i < 3; i++) parts[i] = xt_region_part(slab, i, slab->data + i * size / 3, size / 3);
    xt_region_drop(slab);
    CHECK(atomic_load(&xt_memory_live.bytes) > 0);
    xt_region_keep(parts[1]);
    xt_region_drop(parts[1]);
    xt_region_drop(parts[2]);
    xt_region_drop(parts[0]);
    CHECK(parts[1]->size == size / 3 && (!parts[1]->size || parts[1]->data[0] == 7));
    xt_region_drop(parts[1]);
    CHECK(atomic_load(&xt_memory_live.bytes) == 0);
  }
  CHECK(!xt_region_new_slab(8, 0, SIZE_MAX / 8));
}

int main(void) {
  return RUN_TESTS("region", addresses_match_the_file_offset, the_last_reference_frees, views_keep_their_memory,
                   the_reaper_frees_later, keeps_to_the_budget, parts_keep_their_slab);
}
