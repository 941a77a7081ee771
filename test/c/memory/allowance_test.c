#include "core/memory/allowance.h"

#include <string.h>

#include "check.h"
#include "core/memory/memory.h"
#include "core/memory/table.h"

static int64_t live(void) { return atomic_load(&xt_memory_live.bytes); }

static void depends_on_the_size_of_the_file_only(void) {
  CHECK(xt_allowance_for(0, 0) == 56 << 20 && xt_allowance_for(0, 1) == 56 << 20);
  CHECK(xt_allowance_for(1000, 1) == (56 << 20) + 15000);
  CHECK(xt_allowance_for(1000, 56) == (1 << 20) + 15000 && xt_allowance_for(0, UINT64_MAX) == 8192);
  CHECK(xt_allowance_for(UINT64_MAX, 1) == UINT64_MAX && xt_allowance_for(UINT64_MAX / 15, 1) == UINT64_MAX);
}

static void allows_the_limit_and_nothing_more(void) {
  xt_allowance allowance = {.limit = 1000};
  int64_t before = live();
  CHECK(xt_allowance_take(&allowance, 1000) && !allowance.exceeded && live() == before + 1000);
  CHECK(xt_allowance_fits(&allowance, 0) && !allowance.exceeded);
  CHECK(!xt_allowance_take(&allowance, 1) && allowance.exceeded && live() == before + 1000);
  xt_allowance_return(&allowance, 1000);
  CHECK(!allowance.used && live() == before);
  CHECK(xt_allowance_take(NULL, UINT64_MAX) && xt_allowance_fits(NULL, UINT64_MAX));
  xt_allowance_return(NULL, 1000);
  CHECK(live() == before);
}

static void explains_what_was_exceeded(void) {
  xt_error error;
  xt_allowance allowance = {.limit = 1000};
  CHECK(xt_allowance_explain(&allowance, XT_STATUS_ok, &error) == XT_STATUS_ok);
  xt_error_set(&error, XT_STATUS_no_memory, "out of memory while testing");
  CHECK(xt_allowance_explain(&allowance, XT_STATUS_no_memory, &error) == XT_STATUS_no_memory);
  CHECK(!strcmp(error.message, "out of memory while testing") && !error.collect);

  xt_memory_set_budget(live() + 500);
  CHECK(xt_allowance_take(&allowance, 500) && !xt_allowance_take(&allowance, 1));
  CHECK(xt_allowance_explain(&allowance, XT_STATUS_no_memory, &error) == XT_STATUS_limit);
  CHECK(strstr(error.message, "budget") && error.collect);
  xt_memory_set_budget(INT64_MAX);

  CHECK(!xt_allowance_take(&allowance, 501));
  CHECK(xt_allowance_explain(&allowance, XT_STATUS_no_memory, &error) == XT_STATUS_limit);
  CHECK(strstr(error.message, "1000 bytes") && strstr(error.message, "limits: [memory: n]"));
  xt_allowance_return(&allowance, 500);
}

static void tables_take_their_memory_from_it(void) {
  xt_allowance allowance = {.limit = 10000};
  xt_table table = {.allowance = &allowance};
  static char keys[1000][4];
  bool is_new;
  size_t count = 0;
  for (; count < 1000; count++) {
    keys[count][0] = (char)('a' + count % 26), keys[count][1] = (char)('a' + count / 26 % 26), keys[count][2] = 'x';
    if (!xt_table_put(&table, keys[count], 3, &is_new)) break;
    CHECK(allowance.used >= (count + 1) * sizeof(xt_table_item));
  }
  CHECK(allowance.exceeded && count > 50 && count < 10000 / sizeof(xt_table_item));
  CHECK(xt_table_get(&table, keys[0], 3));
  xt_table_free(&table);
  CHECK(!allowance.used && table.allowance == &allowance);
}

int main(void) {
  return RUN_TESTS("allowance", depends_on_the_size_of_the_file_only, allows_the_limit_and_nothing_more,
                   explains_what_was_exceeded, tables_take_their_memory_from_it);
}
