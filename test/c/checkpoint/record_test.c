#include "core/checkpoint/record.h"

#include <string.h>

#include "check.h"

static xt_record *find(const xt_records *records, const char *name) {
  return xt_records_find(records, name, strlen(name));
}

static void adds_and_finds_records(void) {
  xt_arena arena = {0};
  xt_records records = {0};
  bool duplicate;
  CHECK(xt_records_reserve(&records, &arena, 3, true));
  CHECK(!find(&records, "a"));
  xt_record *a = xt_records_add(&records, "a", 1, &duplicate);
  CHECK(a && !duplicate && a->name_size == 1 && a->size == 0 && atomic_load(&a->data_offset) == 0);
  xt_record *b = xt_records_add_stored(&records, "b/c", 3, 64, 100, &duplicate);
  CHECK(b && !duplicate && b->header == 64 && b->size == 100 && b->packed == 100 && b->end == 164);
  CHECK(atomic_load(&b->data_offset) == 64 && b->method == XT_RECORD_STORED && !b->has_crc);
  CHECK(find(&records, "a") == a && find(&records, "b/c") == b && !find(&records, "b") && !find(&records, ""));
  CHECK(records.count == 2 && &records.list[0] == a && &records.list[1] == b);
  xt_records_free(&records);
  CHECK(!records.count && !find(&records, "a"));
  xt_arena_free(&arena);
}

static void refuses_a_name_twice(void) {
  xt_arena arena = {0};
  xt_records records = {0};
  bool duplicate;
  CHECK(xt_records_reserve(&records, &arena, 3, true));
  CHECK(xt_records_add(&records, "a", 1, &duplicate) && !duplicate);
  CHECK(!xt_records_add(&records, "a", 1, &duplicate) && duplicate && records.count == 1);
  CHECK(!xt_records_add_stored(&records, "a", 1, 0, 0, &duplicate) && duplicate);
  CHECK(xt_records_add(&records, "b", 1, &duplicate) && !duplicate);
  xt_records_free(&records);
  xt_arena_free(&arena);
}

static void holds_no_more_than_were_reserved(void) {
  xt_arena arena = {0};
  xt_records records = {0};
  bool duplicate = true;
  CHECK(xt_records_reserve(&records, &arena, 1, true));
  CHECK(xt_records_add(&records, "a", 1, &duplicate));
  CHECK(!xt_records_add(&records, "b", 1, &duplicate) && !duplicate && records.count == 1);
  xt_records_free(&records);
  xt_arena_free(&arena);
}

/* Names are looked up below the root directory first, and then as a whole. */
static void finds_names_below_the_root(void) {
  xt_arena arena = {0};
  xt_records records = {0};
  bool duplicate;
  CHECK(xt_records_reserve(&records, &arena, 3, true));
  xt_record *pickle = xt_records_add(&records, "archive/data.pkl", 16, &duplicate);
  xt_record *data = xt_records_add(&records, "archive/data/0", 14, &duplicate);
  records.root_size = strlen("archive/");
  CHECK(find(&records, "data.pkl") == pickle && find(&records, "archive/data.pkl") == pickle);
  CHECK(find(&records, "data/0") == data && !find(&records, "0") && !find(&records, "archive/"));
  char longer[600];
  memset(longer, 'x', sizeof longer);
  CHECK(!xt_records_find(&records, longer, sizeof longer));
  xt_records_free(&records);
  xt_arena_free(&arena);
}

/* The names of a zip file have up to 65,535 bytes. */
static void finds_long_names_below_the_root(void) {
  static char name[65535 + 2];
  xt_arena arena = {0};
  xt_records records = {0};
  bool duplicate;
  memset(name, 'n', sizeof name);
  name[1] = '/';
  records.root_size = 2;
  CHECK(xt_records_reserve(&records, &arena, 3, true));
  CHECK(xt_records_add(&records, "n/data.pkl", 10, &duplicate));
  xt_record *longest = xt_records_add(&records, name, 65535, &duplicate);
  xt_record *edge = xt_records_add(&records, name, 513, &duplicate);
  CHECK(longest && edge);
  CHECK(xt_records_find(&records, name + 2, 65533) == longest && xt_records_find(&records, name + 2, 511) == edge);
  CHECK(!xt_records_find(&records, name + 2, 65534) && !xt_records_find(&records, name + 2, 510));
  xt_records_free(&records);
  xt_arena_free(&arena);
}

static void unnamed_records_are_only_listed(void) {
  xt_arena arena = {0};
  xt_records records = {0};
  bool duplicate;
  CHECK(xt_records_reserve(&records, &arena, 2, false));
  CHECK(xt_records_add(&records, "a", 1, &duplicate) && xt_records_add(&records, "a", 1, &duplicate) && !duplicate);
  CHECK(records.count == 2 && !find(&records, "a"));
  xt_records_free(&records);
  xt_arena_free(&arena);
}

static void refuses_counts_that_overflow(void) {
  xt_arena arena = {0};
  xt_records records = {0};
  CHECK(!xt_records_reserve(&records, &arena, SIZE_MAX / 2, true));
  xt_records_free(&records);
  xt_arena_free(&arena);
}

int main(void) {
  return RUN_TESTS("record", adds_and_finds_records, refuses_a_name_twice, holds_no_more_than_were_reserved,
                   finds_names_below_the_root, finds_long_names_below_the_root, unnamed_records_are_only_listed,
                   refuses_counts_that_overflow);
}
