#include "core/checkpoint/save_plan.h"

#include <string.h>

#include "check.h"
#include "core/formats/legacy.h"
#include "core/formats/npy.h"
#include "core/formats/safetensors.h"
#include "core/formats/zip.h"
#include "failing.h"

static _Alignas(16) uint8_t memory[4096];
static const int64_t ones[] = {1};
static int kept;

static void drop_owner(void *owner) {
  CHECK(owner == &kept);
  kept--;
}

/* A view of `count` elements from byte `at` of the memory, which is one storage. */
static xt_save_view view_of(xt_dtype dtype, size_t at, const int64_t *count) {
  kept++;
  return (xt_save_view){.dtype = dtype,
                        .ndim = 1,
                        .sizes = count,
                        .strides = ones,
                        .data = memory + at,
                        .storage = memory,
                        .storage_bytes = sizeof memory,
                        .owner = &kept,
                        .drop = drop_owner};
}

static size_t add(xt_save_plan *plan, xt_save_view view) {
  CHECK(xt_save_plan_add(plan, &view));
  return plan->view_count - 1;
}

static void share(xt_save_plan *plan) {
  xt_error error;
  CHECK(xt_save_plan_share(plan, &error) == XT_STATUS_ok);
}

static void finish(xt_save_plan *plan) {
  xt_save_plan_free(plan);
  CHECK(kept == 0);
}

static void views_of_a_storage_share_it(void) {
  const int64_t ten = 10;
  xt_save_plan plan = {.format = &xt_zip_write};
  add(&plan, view_of(XT_float32, 400, &ten));
  add(&plan, view_of(XT_float32, 0, &ten));
  add(&plan, view_of(XT_int32, 0, &ten)); /* another dtype has a storage of its own */
  share(&plan);
  CHECK(plan.count == 2 && plan.views[0].payload == 0 && plan.views[1].payload == 0 && plan.views[2].payload == 1);
  CHECK(plan.views[0].offset == 100 && plan.views[1].offset == 0);
  CHECK(plan.payloads[0].data == memory && plan.payloads[0].bytes == sizeof memory);
  CHECK(plan.payloads[0].numel == sizeof memory / 4 && !strcmp(plan.payloads[1].key, "1"));
  finish(&plan);
}

static void compact_views_share_only_what_overlaps(void) {
  const int64_t ten = 10, one = 1;
  xt_save_plan plan = {.format = &xt_zip_write, .compact = true};
  add(&plan, view_of(XT_float32, 80, &ten));  /* 80 to 120 */
  add(&plan, view_of(XT_float32, 200, &ten)); /* on its own */
  add(&plan, view_of(XT_float32, 48, &ten));  /* 48 to 88: overlaps the first */
  add(&plan, view_of(XT_float32, 84, &one));  /* inside both */
  add(&plan, view_of(XT_float32, 120, &one)); /* only touches */
  share(&plan);
  CHECK(plan.count == 3 && plan.views[0].payload == 0 && plan.views[2].payload == 0 && plan.views[3].payload == 0);
  CHECK(plan.views[1].payload == 1 && plan.views[4].payload == 2);
  CHECK(plan.payloads[0].data == memory + 48 && plan.payloads[0].bytes == 72 && plan.payloads[0].numel == 18);
  CHECK(plan.views[0].offset == 8 && plan.views[2].offset == 0 && plan.views[3].offset == 9);
  finish(&plan);
}

/* Elements of a storage are a whole number of elements apart. */
static void unaligned_views_do_not_share(void) {
  const int64_t ten = 10;
  xt_save_plan plan = {.format = &xt_zip_write, .compact = true};
  add(&plan, view_of(XT_float32, 0, &ten));
  add(&plan, view_of(XT_float32, 2, &ten));
  add(&plan, view_of(XT_float32, 4, &ten));
  share(&plan);
  CHECK(plan.count == 2 && plan.views[2].payload == 0 && plan.views[2].offset == 1 && plan.views[1].payload == 1);
  finish(&plan);
}

/* Storages that count bytes can be shared whatever the dtypes, if all offsets are whole numbers of elements. */
static void views_of_bytes_share(void) {
  const int64_t ten = 10;
  xt_save_plan plan = {.format = &xt_zip_write, .compact = true};
  add(&plan, view_of(XT_uint8, 0, &ten));
  add(&plan, view_of(XT_uint16, 8, &ten));
  add(&plan, view_of(XT_uint32, 24, &ten));
  add(&plan, view_of(XT_float16, 24, &ten)); /* has a storage class */
  add(&plan, view_of(XT_uint8, 201, &ten));
  add(&plan, view_of(XT_uint16, 202, &ten)); /* an odd distance from the one before */
  share(&plan);
  CHECK(plan.count == 4 && plan.views[1].payload == 0 && plan.views[2].payload == 0 && plan.views[3].payload == 1);
  CHECK(plan.views[1].offset == 4 && plan.views[2].offset == 6);
  CHECK(plan.payloads[0].bytes == 64 && plan.payloads[0].numel == 64);
  CHECK(plan.views[4].payload == 2 && plan.views[5].payload == 3);
  finish(&plan);
}

/* A bare storage shares its payload only if both are the same memory. */
static void bare_storages(void) {
  const int64_t ten = 10, all = sizeof memory / 4;
  xt_save_plan plan = {.format = &xt_zip_write};
  xt_save_view whole = view_of(XT_float32, 0, &all), part = view_of(XT_float32, 40, &ten);
  whole.bare = part.bare = true;
  add(&plan, view_of(XT_float32, 400, &ten));
  add(&plan, part);
  add(&plan, whole);
  share(&plan);
  CHECK(plan.count == 2 && plan.views[0].payload == 0 && plan.views[1].payload == 1 && plan.views[2].payload == 0);
  CHECK(plan.payloads[1].data == memory + 40 && plan.payloads[1].numel == 10 && plan.views[1].offset == 0);
  finish(&plan);
}

/* A storage that begins after the first element, or is not a whole number of elements, is not used. */
static void odd_storages_are_not_written_whole(void) {
  const int64_t ten = 10;
  xt_save_plan plan = {.format = &xt_zip_write};
  xt_save_view view = view_of(XT_float32, 16, &ten);
  view.storage_bytes = 4095;
  add(&plan, view);
  view = view_of(XT_float32, 200, &ten);
  view.storage = memory + 204;
  add(&plan, view);
  view = view_of(XT_float32, 400, &ten);
  view.storage = NULL;
  add(&plan, view);
  share(&plan);
  CHECK(plan.count == 3);
  for (size_t i = 0; i < 3; i++) CHECK(plan.payloads[i].bytes == 40 && plan.payloads[i].data == plan.views[i].data);
  finish(&plan);
}

static void empty_views_have_empty_payloads(void) {
  const int64_t none = 0, ten = 10;
  xt_save_plan plan = {.format = &xt_zip_write, .compact = true};
  add(&plan, view_of(XT_float32, 8, &none));
  add(&plan, view_of(XT_float32, 0, &ten));
  add(&plan, view_of(XT_float32, 8, &none));
  xt_save_view nowhere = view_of(XT_float32, 0, &none);
  nowhere.data = nowhere.storage = NULL;
  add(&plan, nowhere);
  share(&plan);
  CHECK(plan.count == 4);
  for (size_t i = 0; i < 4; i++) CHECK(plan.views[i].payload == i && plan.views[i].offset == 0);
  CHECK(plan.payloads[1].bytes == 40 && !plan.payloads[0].bytes && !plan.payloads[2].bytes && !plan.payloads[3].bytes);
  finish(&plan);
  /* with its whole storage, the address of an empty view does not matter */
  plan = (xt_save_plan){.format = &xt_zip_write};
  add(&plan, view_of(XT_float32, 4000, &none));
  add(&plan, view_of(XT_float32, 0, &ten));
  share(&plan);
  CHECK(plan.count == 1 && plan.views[0].offset == 0);
  finish(&plan);
}

static void staged_views_are_fetched(void) {
  const int64_t ten = 10;
  xt_save_plan plan = {.format = &xt_zip_write};
  for (int i = 0; i < 2; i++) {
    xt_save_view view = view_of(XT_float32, 0, &ten);
    view.staged = true;
    add(&plan, view);
  }
  add(&plan, view_of(XT_float32, 0, &ten));
  share(&plan);
  CHECK(plan.count == 3 && !plan.payloads[0].data && !plan.payloads[1].data && plan.payloads[2].data == memory);
  CHECK(plan.payloads[0].bytes == 40 && plan.payloads[0].numel == 10 && plan.payloads[1].view == 1);
  finish(&plan);
}

/* The storage of an untyped view is what its owner has, and counts bytes. So does one without a storage class. */
static xt_save_view cast_of(xt_dtype dtype, size_t at, const int64_t *count) {
  xt_save_view view = view_of(dtype, at, count);
  view.staged = view.cast = true;
  view.from = XT_float32;
  return view;
}

static void casts_share_a_payload_if_they_are_equal(void) {
  const int64_t ten = 10, five = 5, twos[] = {2};
  xt_save_plan plan = {.format = &xt_zip_write};
  add(&plan, cast_of(XT_float16, 400, &ten));
  add(&plan, cast_of(XT_float16, 400, &five)); /* another shape */
  add(&plan, cast_of(XT_float16, 400, &ten));
  add(&plan, cast_of(XT_float64, 400, &ten)); /* another dtype */
  xt_save_view every_second = cast_of(XT_float16, 400, &five);
  every_second.strides = twos;
  add(&plan, every_second);
  add(&plan, view_of(XT_float32, 400, &ten)); /* not cast */
  const int64_t matrix[] = {2, 5}, rows[] = {5, 1};
  xt_save_view other = cast_of(XT_float16, 400, &ten); /* another number of dimensions */
  other.ndim = 2, other.sizes = matrix, other.strides = rows;
  add(&plan, other);
  other = cast_of(XT_float16, 400, &ten); /* from another dtype */
  other.from = XT_bfloat16;
  add(&plan, other);
  share(&plan);
  CHECK(plan.count == 7 && plan.views[0].payload == 0 && plan.views[2].payload == 0);
  CHECK(plan.views[6].payload == 5 && plan.views[7].payload == 6);
  CHECK(!plan.payloads[0].data && plan.payloads[0].bytes == 20 && plan.payloads[0].numel == 10);
  CHECK(plan.payloads[1].bytes == 10 && plan.payloads[2].bytes == 80 && plan.payloads[3].bytes == 10);
  CHECK(plan.payloads[4].data == memory && !plan.views[2].offset);
  finish(&plan);
}

static void untyped_storages_count_bytes(void) {
  const int64_t two = 2;
  xt_save_plan plan = {.format = &xt_zip_write, .compact = true};
  xt_save_view view = view_of(XT_uint32, 0, &two);
  view.untyped = true;
  view.storage_bytes = 11;
  add(&plan, view);
  add(&plan, view_of(XT_uint32, 100, &two));
  share(&plan);
  CHECK(plan.count == 2 && plan.payloads[0].numel == 11 && plan.payloads[0].bytes == 11);
  CHECK(plan.payloads[1].numel == 8 && plan.payloads[1].bytes == 8);
  finish(&plan);
}

static bool overlap(const xt_save_view *a, const xt_save_view *b) {
  if (a->dtype != b->dtype || a->staged || b->staged || a->untyped != b->untyped) return false;
  if ((uintptr_t)(a->storage - b->storage) % xt_dtype_get(a->dtype)->size) return false;
  return a->storage_bytes && b->storage_bytes && a->storage < b->storage + b->storage_bytes &&
         b->storage < a->storage + a->storage_bytes;
}

/* Random views: two share a payload if and only if a chain of overlaps connects them. The elements of each are in its
 * payload at its offset. */
static void agrees_with_chains_of_overlaps(void) {
  enum { N = 24 };
  static const xt_dtype dtypes[] = {XT_float32, XT_int16, XT_float32, XT_int8};
  unsigned state = 1;
  for (int round = 0; round < 2000; round++) {
    int64_t counts[N];
    size_t root[N];
    xt_save_plan plan = {.format = &xt_zip_write, .compact = true};
    for (size_t i = 0; i < N; i++) {
      state = state * 1103515245 + 12345;
      counts[i] = state >> 16 & 7;
      xt_save_view view = view_of(dtypes[state >> 20 & 3], (state >> 22) % 500, &counts[i]);
      view.staged = (state >> 8 & 15) == 0;
      view.untyped = !view.staged && view.dtype == XT_float32 && (state >> 4 & 7) == 0;
      if (view.untyped) view.storage = view.data, view.storage_bytes = 32;
      add(&plan, view);
      root[i] = i;
    }
    for (size_t pass = 0; pass < N; pass++)
      for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < N; k++)
          if (overlap(&plan.views[i], &plan.views[k]) && root[i] > root[k]) root[i] = root[k];
    share(&plan);
    for (size_t i = 0; i < N; i++) {
      const xt_save_view *view = &plan.views[i];
      const xt_payload *payload = &plan.payloads[view->payload];
      for (size_t k = 0; k < i; k++) CHECK((plan.views[k].payload == view->payload) == (root[k] == root[i]));
      size_t item = xt_dtype_get(view->dtype)->size;
      CHECK(payload->dtype == view->dtype && (size_t)(view->offset + counts[i]) * item <= payload->bytes);
      if (view->staged) CHECK(!payload->data);
      else if (counts[i]) CHECK(payload->data + (size_t)view->offset * item == view->data);
      CHECK(plan.views[payload->view].payload == view->payload && payload->view == root[i]);
    }
    finish(&plan);
  }
}

static void problems_of_views_of_users(void) {
  const int64_t negative[] = {-1, 1}, huge[] = {INT64_MAX, INT64_MAX}, sizes[] = {2, 3}, strides[] = {3, 1};
  const int64_t empty[] = {0, INT64_MAX};
  xt_save_view view = {.dtype = XT_float32, .ndim = 2, .sizes = sizes, .strides = strides, .storage_bytes = 24};
  CHECK(!xt_save_view_problem(&view));
  view.storage_bytes = 23;
  CHECK(strstr(xt_save_view_problem(&view), "shorter"));
  view.sizes = empty;
  CHECK(!xt_save_view_problem(&view));
  view.sizes = negative;
  CHECK(strstr(xt_save_view_problem(&view), "negative"));
  view.sizes = sizes, view.strides = negative;
  CHECK(strstr(xt_save_view_problem(&view), "negative"));
  view.sizes = view.strides = huge;
  CHECK(strstr(xt_save_view_problem(&view), "too large"));
}

/* ---- Named tensors ---- */

static xt_save_tensor tensor_of(xt_save_view view) {
  return (xt_save_tensor){.kind = XT_SAVE_STRIDED, .dtype = view.dtype, .views = {view}, .view_count = 1};
}

static xt_status add_named(xt_save_plan *plan, const char *name, xt_save_view view, xt_error *error) {
  xt_save_tensor tensor = tensor_of(view);
  return xt_save_plan_add_named(plan, name, strlen(name), &tensor, error);
}

static void named_tensors_are_payloads(void) {
  const int64_t ten = 10, sizes[] = {2, 3, 1}, strides[] = {1, 2, 77}, rows[] = {3, 1, 99};
  xt_save_plan plan = {.format = &xt_safetensors_write};
  xt_error error;
  CHECK(add_named(&plan, "a", view_of(XT_float32, 100, &ten), &error) == XT_STATUS_ok);
  for (int i = 0; i < 2; i++) {
    xt_save_view view = view_of(XT_int64, 1000 + 500 * (size_t)i, sizes);
    view.ndim = 3;
    view.strides = i ? rows : strides;
    CHECK(add_named(&plan, i ? "rows" : "columns", view, &error) == XT_STATUS_ok);
  }
  xt_save_view staged = view_of(XT_float32, 100, &ten); /* its address is not memory that is written */
  staged.staged = true;
  CHECK(add_named(&plan, "staged", staged, &error) == XT_STATUS_ok);
  CHECK(xt_save_plan_finish_named(&plan, false, &error) == XT_STATUS_ok && plan.count == 4);
  /* by element size, then by name */
  CHECK(!plan.payloads[0].data && plan.payloads[0].bytes == 48); /* not contiguous */
  CHECK(plan.payloads[1].data == memory + 1500);
  CHECK(plan.payloads[2].data == memory + 100 && plan.payloads[2].bytes == 40 && !plan.payloads[3].data);
  const xt_sort_name *first = &plan.names[plan.payloads[0].view];
  CHECK(first->size == 7 && !memcmp(first->text, "columns", 7));
  finish(&plan);
}

/* Returns the message if the names are refused, an empty one if they are not. */
static const char *refused_names(const xt_format_writer *format, const char *a, size_t a_size, const char *b) {
  static xt_error error;
  const int64_t ten = 10;
  xt_save_plan plan = {.format = format};
  xt_save_tensor tensor = tensor_of(view_of(XT_float32, 0, &ten));
  xt_status status = xt_save_plan_add_named(&plan, a, a_size, &tensor, &error);
  if (status == XT_STATUS_ok) status = add_named(&plan, b, view_of(XT_float32, 400, &ten), &error);
  if (status == XT_STATUS_ok) status = xt_save_plan_finish_named(&plan, false, &error);
  CHECK(status == XT_STATUS_ok || status == XT_STATUS_bad_argument);
  if (status == XT_STATUS_ok) error.message[0] = 0;
  finish(&plan);
  return error.message;
}

static void names_that_a_format_cannot_have(void) {
  static char large[60001];
  memset(large, 'x', sizeof large);
  CHECK(strstr(refused_names(&xt_safetensors_write, "same", 4, "same"), "several tensors have the name same"));
  CHECK(strstr(refused_names(&xt_npz_write, "same\1", 5, "same\1"), "several tensors have the name same\\x01"));
  CHECK(strstr(refused_names(&xt_safetensors_write, "\xC3(", 2, "b"), "the name \\xc3( is not valid UTF-8"));
  CHECK(strstr(refused_names(&xt_npz_write, "\xED\xA0\x80", 3, "b"), "not valid UTF-8"));
  CHECK(strstr(refused_names(&xt_safetensors_write, "__metadata__", 12, "b"), "cannot be the name of a tensor"));
  CHECK(!*refused_names(&xt_npz_write, "__metadata__", 12, "b"));
  CHECK(strstr(refused_names(&xt_npz_write, "", 0, "b"), "cannot be the name of a tensor in a npz file"));
  CHECK(strstr(refused_names(&xt_npz_write, "a\0c", 3, "b"), "cannot be the name of a tensor in a npz file"));
  CHECK(strstr(refused_names(&xt_npz_write, large, sizeof large, "b"), "cannot be the name of a tensor"));
  CHECK(!*refused_names(&xt_npz_write, large, sizeof large - 1, "b"));
  CHECK(!*refused_names(&xt_safetensors_write, "", 0, "a"));
  CHECK(!*refused_names(&xt_safetensors_write, "a\0c", 3, "a"));
}

static void named_tensors_must_not_share_memory(void) {
  const int64_t ten = 10, hundred = 100;
  xt_error error;
  for (int duplicate = 0; duplicate < 2; duplicate++) {
    xt_save_plan plan = {.format = &xt_safetensors_write};
    CHECK(add_named(&plan, "after", view_of(XT_float32, 400, &ten), &error) == XT_STATUS_ok);
    CHECK(add_named(&plan, "inner", view_of(XT_uint8, 398, &ten), &error) == XT_STATUS_ok);
    CHECK(add_named(&plan, "outer", view_of(XT_uint8, 0, &hundred), &error) == XT_STATUS_ok);
    xt_status status = xt_save_plan_finish_named(&plan, duplicate, &error);
    CHECK(status == (duplicate ? XT_STATUS_ok : XT_STATUS_bad_argument));
    if (!duplicate) CHECK(strstr(error.message, "inner and after share memory, which safetensors cannot represent"));
    finish(&plan);
  }
}

static void safetensors_refuses(void) {
  const int64_t ten = 10, none = 0;
  static const struct {
    xt_dtype dtype;
    xt_save_kind kind;
    int ndim;
    const char *message;
  } cases[] = {{XT_complex128, XT_SAVE_STRIDED, 1, "w: safetensors does not support complex128;"},
               {XT_float32, XT_SAVE_SPARSE, 1, "does not support sparse, quantized or meta tensors"},
               {XT_float4_e2m1fn_x2, XT_SAVE_STRIDED, 0, "a part of an element"},
               {XT_float6_e2m3fn_x4, XT_SAVE_STRIDED, 1, "a part of an element"}};
  xt_error error;
  for (size_t i = 0; i < COUNT_OF(cases); i++) {
    xt_save_plan plan = {.format = &xt_safetensors_write};
    xt_save_view view = view_of(cases[i].dtype, 0, &ten);
    view.ndim = cases[i].ndim;
    xt_save_tensor tensor = tensor_of(view);
    tensor.kind = cases[i].kind;
    CHECK(xt_save_plan_add_named(&plan, "w", 1, &tensor, &error) == XT_STATUS_unsupported);
    CHECK(strstr(error.message, cases[i].message));
    finish(&plan);
  }
  xt_save_plan plan = {.format = &xt_safetensors_write};
  CHECK(add_named(&plan, "f4", view_of(XT_float4_e2m1fn_x2, 0, &ten), &error) == XT_STATUS_ok);
  CHECK(add_named(&plan, "empty", view_of(XT_float6_e2m3fn_x4, 0, &none), &error) == XT_STATUS_ok);
  finish(&plan);
}

static void npy_refuses(void) {
  const int64_t ten = 10;
  static const struct {
    xt_dtype dtype;
    xt_save_kind kind;
    const char *message;
  } cases[] = {{XT_bfloat16, XT_SAVE_STRIDED, "does not support bfloat16;"},
               {XT_float8_e5m2, XT_SAVE_STRIDED, "does not support float8_e5m2;"},
               {XT_complex32, XT_SAVE_STRIDED, "does not support complex32;"},
               {XT_float32, XT_SAVE_SPARSE, "does not support sparse, quantized or meta tensors"}};
  xt_error error;
  for (size_t i = 0; i < 2 * COUNT_OF(cases); i++) {
    xt_save_plan plan = {.format = i % 2 ? &xt_npz_write : &xt_npy_write};
    xt_save_tensor tensor = tensor_of(view_of(cases[i / 2].dtype, 0, &ten));
    tensor.kind = cases[i / 2].kind;
    CHECK(xt_save_plan_add_named(&plan, "w", 1, &tensor, &error) == XT_STATUS_unsupported);
    CHECK(strstr(error.message, cases[i / 2].message) && strstr(error.message, i % 2 ? "w: npz" : "w: npy"));
    finish(&plan);
  }
}

/* ---- Failing allocations ---- */

static xt_status plan_all(xt_save_plan *plan, bool named, xt_error *error) {
  static const int64_t one = 1;
  bool added = true;
  xt_status status = XT_STATUS_ok;
  for (size_t i = 0; i < 40 && added && status == XT_STATUS_ok; i++) {
    xt_save_view view = view_of(XT_float32, 8 * i, &one);
    char name[] = {'n', (char)('0' + i), 0};
    if (named) status = add_named(plan, name, view, error);
    else added = xt_save_plan_add(plan, &view);
  }
  if (!added) return XT_STATUS_no_memory;
  if (status != XT_STATUS_ok) return status;
  return named ? xt_save_plan_finish_named(plan, false, error) : xt_save_plan_share(plan, error);
}

static void every_failing_allocation_is_reported(void) {
  xt_error error;
  for (int named = 0; named < 2; named++)
    for (long at = 0;; at++) {
      xt_save_plan plan = {.format = named ? &xt_safetensors_write : &xt_zip_write, .compact = true};
      allocations = 0, fail_at = at;
      xt_status status = plan_all(&plan, named, &error);
      fail_at = -1;
      bool failed = allocations > at;
      CHECK(status == (failed ? XT_STATUS_no_memory : XT_STATUS_ok));
      finish(&plan);
      if (!failed) break;
    }
}

int main(void) {
  return RUN_TESTS("save plan", views_of_a_storage_share_it, compact_views_share_only_what_overlaps,
                   unaligned_views_do_not_share, views_of_bytes_share, bare_storages,
                   odd_storages_are_not_written_whole, empty_views_have_empty_payloads, staged_views_are_fetched,
                   casts_share_a_payload_if_they_are_equal, untyped_storages_count_bytes,
                   agrees_with_chains_of_overlaps, problems_of_views_of_users, named_tensors_are_payloads,
                   names_that_a_format_cannot_have, named_tensors_must_not_share_memory, safetensors_refuses,
                   npy_refuses, every_failing_allocation_is_reported);
}
