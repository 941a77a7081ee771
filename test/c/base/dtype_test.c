#include "core/base/dtype.h"

#include <string.h>

#include "check.h"

static void finds_each_by_every_name(void) {
  for (int i = 0; i < XT_DTYPE_COUNT; i++) {
    const xt_dtype_info *info = xt_dtype_get((xt_dtype)i);
    CHECK(xt_dtype_from_name(info->name) == (xt_dtype)i);
    CHECK(xt_dtype_from_name(info->alias) == (xt_dtype)i);
    CHECK(xt_dtype_from_torch(info->torch) == (xt_dtype)i);
    if (info->nx_bits) CHECK(xt_dtype_from_nx(info->nx, info->nx_bits) == (xt_dtype)i);
    char class[32];
    int size = snprintf(class, sizeof class, "%sStorage", info->storage);
    if (*info->storage) CHECK(xt_dtype_from_storage(class, (size_t)size) == (xt_dtype)i);
    if (*info->safetensors)
      CHECK(xt_dtype_from_safetensors(info->safetensors, strlen(info->safetensors)) == (xt_dtype)i);
    if (*info->numpy) CHECK(xt_dtype_from_numpy(info->numpy, strlen(info->numpy)) == (xt_dtype)i);
    CHECK(!info->packed || (info->size == 1 && info->packed < 8));
  }
}

static void refuses_unknown_names(void) {
  CHECK(xt_dtype_from_name("") == XT_DTYPE_COUNT);
  CHECK(xt_dtype_from_nx("none", 0) == XT_DTYPE_COUNT);
  CHECK(xt_dtype_from_torch(99) == XT_DTYPE_COUNT);
  CHECK(xt_dtype_from_storage("Storage", 7) == XT_DTYPE_COUNT && xt_dtype_from_storage("", 0) == XT_DTYPE_COUNT);
  CHECK(xt_dtype_from_storage("FloatStorage", 11) == XT_DTYPE_COUNT &&
        xt_dtype_from_storage("Float", 5) == XT_DTYPE_COUNT);
  CHECK(xt_dtype_from_safetensors("", 0) == XT_DTYPE_COUNT && xt_dtype_from_safetensors("F3", 2) == XT_DTYPE_COUNT);
  CHECK(xt_dtype_from_safetensors("F32\0", 4) == XT_DTYPE_COUNT);
  CHECK(xt_dtype_from_numpy("", 0) == XT_DTYPE_COUNT && xt_dtype_from_numpy("U4", 2) == XT_DTYPE_COUNT);
}

int main(void) { return RUN_TESTS("dtype", finds_each_by_every_name, refuses_unknown_names); }
