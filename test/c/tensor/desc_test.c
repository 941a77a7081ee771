#include "core/tensor/desc.h"

#include <string.h>

#include "check.h"

static xt_error error;

static xt_storages make_storages(xt_arena *arena, int64_t numel) {
  xt_storages storages = {.arena = arena, .max_tensor_bytes = 1000};
  uint32_t index;
  CHECK(xt_storages_add(&storages, "0", 1, XT_float32, numel, 7, &index, &error) == XT_STATUS_ok && index == 0);
  return storages;
}

static void layouts_have_names(void) {
  xt_layout layout;
  CHECK(!strcmp(xt_layout_name(XT_LAYOUT_STRIDED), "strided") && !strcmp(xt_layout_name(XT_LAYOUT_BSC), "sparse_bsc"));
  CHECK(!xt_layout_name(3) && !xt_layout_name(7) && !xt_layout_name(-1));
  for (int i = 0; i < 7; i++)
    if (xt_layout_name(i))
      CHECK(xt_layout_from_name(xt_layout_name(i), strlen(xt_layout_name(i)), &layout) && (int)layout == i);
  CHECK(!xt_layout_from_name("sparse", 6, &layout) && !xt_layout_from_name("", 0, &layout));
}

static void storages_grow_and_keep_their_content(void) {
  xt_arena arena = {0};
  xt_storages storages = make_storages(&arena, 10);
  uint32_t index;
  for (int64_t i = 1; i < 1000; i++)
    CHECK(xt_storages_add(&storages, "k", 1, XT_int16, i, 0, &index, &error) == XT_STATUS_ok && index == i);
  CHECK(storages.list[0].bytes == 40 && storages.list[999].bytes == 1998);
  CHECK(!xt_storage_is_meta(&storages.list[0]));
  storages.list[0].location = "meta", storages.list[0].location_size = 4;
  CHECK(xt_storage_is_meta(&storages.list[0]));
  CHECK(xt_storages_add(&storages, "k", 1, XT_int16, -1, 7, &index, &error) == XT_STATUS_corrupt && error.offset == 7);
  CHECK(xt_storages_add(&storages, "k", 1, XT_int16, INT64_MAX, 7, &index, &error) == XT_STATUS_corrupt);
  xt_storages_free(&storages);
  xt_arena_free(&arena);
}

static void a_tensor_must_lie_in_its_storage(void) {
  xt_arena arena = {0};
  xt_storages storages = make_storages(&arena, 12);
  xt_tensor_desc t = {0};
  int64_t sizes[] = {3, 4}, strides[] = {4, 1}, huge[] = {INT64_MAX, 2};
  xt_storage_view whole = {0, -1, 0}, part = {2, 8, 0};
  CHECK(xt_tensor_desc_set_contiguous(&t, &storages, 0, XT_float32, sizes, 2, false, 7, &error) == XT_STATUS_ok);
  CHECK(t.strides[0] == 4 && t.strides[1] == 1 && storages.list[0].alignment == 4);
  CHECK(xt_tensor_desc_set_contiguous(&t, &storages, 0, XT_float32, sizes, 2, true, 7, &error) == XT_STATUS_ok);
  CHECK(t.strides[0] == 1 && t.strides[1] == 3);
  CHECK(xt_tensor_desc_set_contiguous(&t, &storages, 0, XT_float64, sizes, 2, true, 7, &error) == XT_STATUS_corrupt);
  CHECK(error.offset == 7 && strstr(error.message, "past the end of its storage"));
  CHECK(xt_tensor_desc_set_contiguous(&t, &storages, 0, XT_uint8, huge, 2, false, 7, &error) == XT_STATUS_corrupt);
  CHECK(xt_tensor_desc_set_strided(&t, &storages, &whole, 0, sizes, strides, 2, 7, &error) == XT_STATUS_ok);
  CHECK(xt_tensor_desc_set_strided(&t, &storages, &whole, 1, sizes, strides, 2, 7, &error) == XT_STATUS_corrupt);
  CHECK(xt_tensor_desc_set_strided(&t, &storages, &whole, -1, sizes, strides, 2, 7, &error) == XT_STATUS_corrupt);
  CHECK(xt_tensor_desc_set_strided(&t, &storages, &part, 0, sizes, strides, 1, 7, &error) == XT_STATUS_corrupt);
  sizes[0] = 2;
  CHECK(xt_tensor_desc_set_strided(&t, &storages, &part, 3, sizes, strides, 1, 7, &error) == XT_STATUS_ok);
  CHECK(t.offset == 5);
  strides[0] = 0, sizes[0] = 251;
  CHECK(xt_tensor_desc_set_strided(&t, &storages, &whole, 0, sizes, strides, 1, 7, &error) == XT_STATUS_limit);
  strides[0] = -1;
  CHECK(xt_tensor_desc_set_strided(&t, &storages, &whole, 0, sizes, strides, 1, 7, &error) == XT_STATUS_corrupt);
  xt_storages_free(&storages);
  xt_arena_free(&arena);
}

int main(void) {
  return RUN_TESTS("desc", layouts_have_names, storages_grow_and_keep_their_content, a_tensor_must_lie_in_its_storage);
}
