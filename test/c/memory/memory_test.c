#include "core/memory/memory.h"

#include <string.h>

#include "check.h"

static int64_t live_bytes(void) { return atomic_load(&xt_memory_live.bytes); }

static void counts_and_aligns_blocks(void) {
  int64_t before = live_bytes();
  size_t sizes[] = {1, 100, 4096, (1 << 20) - 1, 1 << 20, (2 << 20) + 5, 64 << 20};
  xt_memory_taken();
  for (size_t i = 0; i < COUNT_OF(sizes); i++) {
    char *block = xt_memory_alloc(sizes[i]);
    CHECK(block && (uintptr_t)block % 64 == 0);
    if (sizes[i] >= 2 << 20) CHECK((uintptr_t)block % (2 << 20) == 0);
    memset(block, 1, sizes[i]);
    CHECK(live_bytes() == before + (int64_t)sizes[i]);
    CHECK(xt_memory_taken() == (int64_t)sizes[i]);
    xt_memory_free(block);
    CHECK(live_bytes() == before);
  }
  xt_memory_free(NULL);
}

static void keeps_to_the_budget(void) {
  int64_t before = live_bytes();
  xt_memory_set_budget(before + 1000);
  CHECK(xt_memory_budget() == before + 1000);
  CHECK(!xt_memory_alloc(1001) && xt_memory_refused() == XT_REFUSED_BUDGET && xt_memory_refused() == XT_REFUSED_NOT);
  void *all = xt_memory_alloc(1000);
  CHECK(all && !xt_memory_alloc(1));
  xt_memory_free(all);
  xt_memory_set_budget(INT64_MAX);
  CHECK(live_bytes() == before);
}

static void reports_that_the_machine_has_no_more(void) {
  int64_t before = live_bytes();
  xt_memory_refused();
  CHECK(!xt_memory_alloc((size_t)1 << 60) && xt_memory_refused() == XT_REFUSED_MACHINE);
  CHECK(!xt_memory_alloc(SIZE_MAX) && xt_memory_refused() != XT_REFUSED_NOT);
  CHECK(live_bytes() == before);
}

int main(void) {
  return RUN_TESTS("memory", counts_and_aligns_blocks, keeps_to_the_budget, reports_that_the_machine_has_no_more);
}
