#include "core/base/dtype.h"

#include "check.h"

static void finds_each_by_every_name(void) {
  for (int i = 0; i < XT_DTYPE_COUNT; i++) {
    const xt_dtype_info *info = xt_dtype_get((xt_dtype)i);
    CHECK(xt_dtype_from_name(info->name) == (xt_dtype)i);
    CHECK(xt_dtype_from_name(info->alias) == (xt_dtype)i);
    CHECK(xt_dtype_from_torch(info->torch) == (xt_dtype)i);
    if (info->nx_bits) CHECK(xt_dtype_from_nx(info->nx, info->nx_bits) == (xt_dtype)i);
  }
}

static void refuses_unknown_names(void) {
  CHECK(xt_dtype_from_name("") == XT_DTYPE_COUNT);
  CHECK(xt_dtype_from_nx("none", 0) == XT_DTYPE_COUNT);
  CHECK(xt_dtype_from_torch(99) == XT_DTYPE_COUNT);
}

int main(void) { return RUN_TESTS("dtype", finds_each_by_every_name, refuses_unknown_names); }
