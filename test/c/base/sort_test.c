/* Sorts keys and names, and compares with qsort. */
#include "core/base/sort.h"

#include <string.h>

#include "check.h"

enum { MAX = 5000 };

static xt_sort_item items[MAX], scratch[MAX];
static xt_sort_name names[MAX];
static uint64_t state = 1;

static uint64_t next(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 16;
}

static void sorts_keys(void) {
  for (int round = 0; round < 300; round++) {
    size_t count = next() % (round % 10 ? 100 : MAX);
    uint64_t mask = round % 3 == 0 ? 7 : round % 3 == 1 ? 0xFF00FF00FF00 : UINT64_MAX;
    for (size_t i = 0; i < count; i++) items[i] = (xt_sort_item){(next() << 20 ^ next()) & mask, i};
    xt_sort_items(items, scratch, count);
    for (size_t i = 1; i < count; i++) {
      CHECK(items[i - 1].key <= items[i].key);
      CHECK(items[i - 1].key < items[i].key || items[i - 1].index < items[i].index);
    }
  }
}

static int order_of(const xt_sort_name *a, const xt_sort_name *b) {
  int order = memcmp(a->text, b->text, a->size < b->size ? a->size : b->size);
  return order ? order : a->size < b->size ? -1 : a->size > b->size;
}

static void check_names(size_t count) {
  static bool seen[MAX];
  for (size_t i = 0; i < count; i++) items[i] = (xt_sort_item){0, i};
  xt_sort_names(names, items, scratch, count);
  memset(seen, 0, sizeof seen);
  for (size_t i = 0; i < count; i++) {
    CHECK(!seen[items[i].index]);
    seen[items[i].index] = true;
    CHECK(!i || order_of(&names[items[i - 1].index], &names[items[i].index]) <= 0);
  }
}

static void sorts_names_of_layers(void) {
  static char text[MAX][64];
  for (size_t i = 0; i < MAX; i++) {
    size_t j = (i * 7919) % MAX;
    int size = snprintf(text[i], sizeof text[i], "model.layers.%zu.attention.%zu.weight", j / 9, j % 9);
    names[i] = (xt_sort_name){text[i], (size_t)size};
  }
  check_names(MAX);
  check_names(1);
  check_names(0);
}

/* Short names over few bytes, among them zeros and 0xFF, with many that are equal or begin like others. */
static void sorts_any_bytes(void) {
  static char text[MAX][24];
  static const char bytes[] = {0, 'a', 'b', (char)0xFF};
  for (int round = 0; round < 200; round++) {
    size_t count = next() % (round % 20 ? 200 : MAX), most = 1 + next() % 24;
    for (size_t i = 0; i < count; i++) {
      size_t size = next() % most;
      for (size_t at = 0; at < size; at++) text[i][at] = bytes[next() % (round % 2 ? 4 : 2)];
      names[i] = (xt_sort_name){text[i], size};
    }
    check_names(count);
  }
}

/* Each name is the beginning of the next: more levels than the sort descends. */
static void sorts_names_that_begin_alike(void) {
  static char text[8 * MAX];
  memset(text, 'x', sizeof text);
  for (size_t i = 0; i < 2000; i++) names[i] = (xt_sort_name){text, 8 * ((i * 37) % 2000)};
  check_names(2000);
}

int main(void) {
  return RUN_TESTS("sort", sorts_keys, sorts_names_of_layers, sorts_any_bytes, sorts_names_that_begin_alike);
}
