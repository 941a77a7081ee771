#include "core/base/suggest.h"

#include <string.h>

#include "check.h"

static void counts_edits(void) {
  CHECK(xt_suggest_distance("", "") == 0 && xt_suggest_distance("abc", "") == 3);
  CHECK(xt_suggest_distance("matmul", "matmull") == 1 && xt_suggest_distance("recieve", "receive") == 1);
  CHECK(xt_suggest_distance("kitten", "sitting") == 3);
}

static void compares_only_the_start_of_long_names(void) {
  char a[200], b[200];
  memset(a, 'x', sizeof a - 1);
  a[sizeof a - 1] = 0;
  memcpy(b, a, sizeof b);
  CHECK(xt_suggest_distance(a, b) == 0);
  b[XT_SUGGEST_MAX] = 'y';
  CHECK(xt_suggest_distance(a, b) == 0);
  b[XT_SUGGEST_MAX - 1] = 'y';
  CHECK(xt_suggest_distance(a, b) == 1);
}

int main(void) { return RUN_TESTS("suggest", counts_edits, compares_only_the_start_of_long_names); }
