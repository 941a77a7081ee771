#include "core/memory/frozen.h"

#include "check.h"

static bool is_frozen(void *data, size_t size) {
  xt_frozen writer;
  bool writes = xt_frozen_write(&writer, data, size, false);
  xt_frozen_remove(&writer);
  return !writes;
}

/* Compares the tree with a linear search over a list of ranges, after each of many random changes. */
static void agrees_with_a_linear_search(void) {
  enum { N = 400 };
  static xt_frozen nodes[N];
  static struct {
    uintptr_t start;
    size_t size;
    bool frozen;
  } ranges[N];
  unsigned seed = 1;
  for (int step = 0; step < 20000; step++) {
    int i = rand_r(&seed) % N;
    if (ranges[i].frozen) {
      xt_frozen_remove(&nodes[i]);
      ranges[i].frozen = false;
    } else {
      ranges[i].start = 1000 + (uintptr_t)rand_r(&seed) % 5000;
      ranges[i].size = (size_t)(rand_r(&seed) % 40);
      ranges[i].frozen = ranges[i].size > 0;
      xt_frozen_add(&nodes[i], (void *)ranges[i].start, ranges[i].size);
    }
    uintptr_t start = 900 + (uintptr_t)rand_r(&seed) % 5200;
    size_t size = (size_t)(rand_r(&seed) % 20);
    bool expected = false;
    for (int k = 0; k < N; k++)
      expected |=
          ranges[k].frozen && size && ranges[k].start < start + size && start < ranges[k].start + ranges[k].size;
    CHECK(is_frozen((void *)start, size) == expected);
  }
  for (int i = 0; i < N; i++) xt_frozen_remove(&nodes[i]);
  CHECK(!is_frozen((void *)1, 1 << 20));
}

static void writers_and_freezes_see_each_other(void) {
  static char memory[100];
  xt_frozen writer, lent, frozen, refused;
  CHECK(xt_frozen_writers(memory, 100) == XT_WRITERS_NONE);
  CHECK(xt_frozen_write(&writer, memory, 50, false));
  CHECK(xt_frozen_write(&lent, memory + 40, 20, true)); /* writers may overlap */
  CHECK(xt_frozen_writers(memory + 10, 1) == XT_WRITERS_CALL);
  CHECK(xt_frozen_writers(memory + 45, 1) == XT_WRITERS_LENT);
  CHECK(xt_frozen_writers(memory + 60, 40) == XT_WRITERS_NONE);
  CHECK(!is_frozen(memory, 100));
  xt_frozen_add(&frozen, memory + 20, 70);
  CHECK(xt_frozen_writers(memory + 20, 10) == XT_WRITERS_CALL);
  CHECK(!xt_frozen_write(&refused, memory + 80, 20, false)); /* from now on only memory outside the range */
  CHECK(!xt_frozen_write(&refused, memory + 80, 20, true));
  xt_frozen_remove(&refused);
  CHECK(xt_frozen_write(&refused, memory + 90, 10, false));
  xt_frozen_remove(&refused);
  CHECK(xt_frozen_write(&refused, memory + 30, 0, false)); /* nothing is written */
  xt_frozen_remove(&refused);
  xt_frozen_remove(&writer);
  xt_frozen_remove(&lent);
  CHECK(xt_frozen_writers(memory, 100) == XT_WRITERS_NONE);
  xt_frozen_remove(&frozen);
  CHECK(xt_frozen_write(&writer, memory, 100, false));
  xt_frozen_remove(&writer);
}

int main(void) { return RUN_TESTS("frozen", agrees_with_a_linear_search, writers_and_freezes_see_each_other); }
