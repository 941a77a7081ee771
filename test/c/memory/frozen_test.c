#include "core/memory/frozen.h"

#include "check.h"

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
    CHECK(xt_frozen_overlaps((void *)start, size) == expected);
  }
  for (int i = 0; i < N; i++) xt_frozen_remove(&nodes[i]);
  CHECK(!xt_frozen_overlaps((void *)1, 1 << 20));
}

int main(void) { return RUN_TESTS("frozen", agrees_with_a_linear_search); }
