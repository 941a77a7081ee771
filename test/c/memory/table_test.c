#include "core/memory/table.h"

#include <stdio.h>
#include <string.h>

#include "check.h"
#include "failing.h"

static void an_empty_table_has_no_keys(void) {
  xt_table table = {0};
  CHECK(!xt_table_get(&table, "a", 1) && !xt_table_get(&table, "", 0));
  xt_table_free(&table);
}

static void keys_are_byte_strings(void) {
  static const struct {
    const char *key;
    size_t size;
  } keys[] = {{"", 0}, {"a", 1}, {"a\0", 2}, {"a\0b", 3}, {"abcdefgh", 8}, {"abcdefghi", 9}, {"abcdefgi", 8}};
  xt_table table = {0};
  bool is_new;
  for (size_t i = 0; i < COUNT_OF(keys); i++) {
    size_t *value = xt_table_put(&table, keys[i].key, keys[i].size, &is_new);
    CHECK(value && is_new && *value == 0);
    *value = i + 100;
  }
  for (size_t i = 0; i < COUNT_OF(keys); i++) {
    CHECK(*xt_table_get(&table, keys[i].key, keys[i].size) == i + 100);
    CHECK(*xt_table_put(&table, keys[i].key, keys[i].size, &is_new) == i + 100 && !is_new);
  }
  CHECK(table.count == COUNT_OF(keys) && !xt_table_get(&table, "b", 1) && !xt_table_get(&table, "abcdefg", 7));
  xt_table_free(&table);
}

static void holds_many_keys_in_the_order_of_insertion(void) {
  enum { N = 50000 };
  static uint32_t keys[N];
  xt_table table = {0};
  bool is_new;
  for (uint32_t i = 0; i < N; i++) {
    keys[i] = i * 2654435761u;
    size_t *value = xt_table_put(&table, &keys[i], sizeof keys[i], &is_new);
    CHECK(value && is_new);
    *value = i;
  }
  CHECK(table.count == N);
  for (uint32_t i = 0; i < N; i++) {
    CHECK(*xt_table_get(&table, &keys[i], sizeof keys[i]) == i);
    CHECK(table.items[i].key == &keys[i] && table.items[i].value == i);
  }
  uint32_t absent = keys[N - 1] + 1;
  CHECK(!xt_table_get(&table, &absent, sizeof absent));
  xt_table_free(&table);
  CHECK(!table.count && !xt_table_get(&table, &keys[0], sizeof keys[0]));
}

/* The arena frees the memory of the table. */
static void lives_in_an_arena(void) {
  static char names[2000][24];
  xt_allowance allowance = {.limit = 1 << 20};
  xt_arena arena = {.allowance = &allowance};
  xt_table table = {.allowance = &allowance, .arena = &arena};
  bool is_new;
  for (size_t i = 0; i < COUNT_OF(names); i++) {
    snprintf(names[i], sizeof names[i], "name %zu", i);
    size_t *value = xt_table_put(&table, names[i], strlen(names[i]), &is_new);
    CHECK(value && is_new);
    *value = i;
  }
  for (size_t i = 0; i < COUNT_OF(names); i++) CHECK(*xt_table_get(&table, names[i], strlen(names[i])) == i);
  uint64_t used = allowance.used;
  CHECK(used > COUNT_OF(names) * (sizeof *table.items + sizeof *table.slots));
  CHECK(!xt_table_reserve(&table, 1 << 20) && allowance.exceeded && allowance.used >= used);
  xt_table_free(&table);
  CHECK(!xt_table_get(&table, names[0], strlen(names[0])) && table.arena == &arena);
  xt_arena_free(&arena);
  CHECK(!allowance.used);
}

/* A failed allocation leaves the keys that are there. */
static void survives_failed_allocations(void) {
  static char names[1000][24];
  xt_table table = {0};
  bool is_new;
  size_t put = 0;
  for (size_t i = 0; i < COUNT_OF(names); i++) snprintf(names[i], sizeof names[i], "%zu", i);
  for (size_t i = 0; i < COUNT_OF(names); i++) {
    fail_at = allocations;
    size_t *value = xt_table_put(&table, names[i], strlen(names[i]), &is_new);
    fail_at = -1;
    if (!value) {
      CHECK(table.count == put);
      value = xt_table_put(&table, names[i], strlen(names[i]), &is_new);
    }
    CHECK(value && is_new);
    *value = i, put++;
  }
  for (size_t i = 0; i < COUNT_OF(names); i++) CHECK(*xt_table_get(&table, names[i], strlen(names[i])) == i);
  xt_table_free(&table);
}

/* Reserved keys need no further allocation. */
static void reserves_room(void) {
  static char names[500][24];
  xt_table table = {0};
  bool is_new;
  CHECK(xt_table_reserve(&table, COUNT_OF(names)));
  long before = allocations;
  for (size_t i = 0; i < COUNT_OF(names); i++) {
    int size = snprintf(names[i], sizeof names[i], "%zu", i);
    CHECK(xt_table_put(&table, names[i], (size_t)size, &is_new) && is_new);
  }
  CHECK(allocations == before);
  CHECK(!xt_table_reserve(&table, SIZE_MAX));
  xt_table_free(&table);
}

int main(void) {
  return RUN_TESTS("table", an_empty_table_has_no_keys, keys_are_byte_strings,
                   holds_many_keys_in_the_order_of_insertion, lives_in_an_arena, survives_failed_allocations,
                   reserves_room);
}
