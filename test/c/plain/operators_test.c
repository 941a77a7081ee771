/* Views, copies, and what is not there. */
#include <math.h>

#include "failing.h"
#include "sample.h"

static xt_tensor *numbers(int64_t count) { return TENSOR("arange", of_int(count)); }

/* Whether the elements are these integers, in order. */
#define HAS(tensor, ...) has(tensor, (int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
static bool has(const xt_tensor *tensor, const int64_t *expected, int64_t count) {
  if (tensor->info.numel != count) return false;
  for (int64_t i = 0; i < count; i++)
    if (element_at(tensor, i).i != expected[i]) return false;
  return true;
}

static bool has_shape(const xt_tensor *tensor, int ndim, const int64_t *sizes, const int64_t *strides) {
  const xt_tensor_info *info = &tensor->info;
  return info->ndim == ndim && !memcmp(info->sizes, sizes, (size_t)ndim * 8) &&
         (!strides || !memcmp(info->strides, strides, (size_t)ndim * 8));
}

/* ---- A model: the same operator on a tensor with strides, and on a contiguous copy of it ---- */

static unsigned seed = 1;
static int64_t pick(int64_t limit) { return rand_r(&seed) % limit; }

static xt_tensor *random_view(xt_tensor *t, int which, int64_t a, int64_t b, int64_t c, const int64_t *order) {
  int n = t->info.ndim, dim = n ? (int)(a % n) : 0;
  int64_t size = n ? t->info.sizes[dim] : 1, items_order[XT_MAX_DIMS];
  xt_value items[XT_MAX_DIMS];
  switch (which) {
  case 0: return n ? TENSOR("select.int", of_tensor(t), of_int(dim), of_int(b % size)) : NULL;
  case 1:
    return n ? TENSOR("slice.Tensor", of_tensor(t), of_int(dim), of_int(b % size), of_int(b % size + 1 + c),
                      of_int(c + 1))
             : NULL;
  case 2: return n ? TENSOR("transpose.int", of_tensor(t), of_int(dim), of_int(b % n - n)) : NULL;
  case 3: return n < 6 ? TENSOR("unsqueeze", of_tensor(t), of_int(b % (n + 1))) : NULL;
  case 4: return TENSOR("squeeze", of_tensor(t));
  case 5: return TENSOR("reshape", of_tensor(t), INTS(-1));
  case 6:
    if (n < 1 || size % 2) return NULL;
    for (int d = 0; d <= n; d++)
      items_order[d] = d < dim ? t->info.sizes[d] : d == dim ? 2 : d == dim + 1 ? size / 2 : t->info.sizes[d - 1];
    return TENSOR("reshape", of_tensor(t), of_ints(items_order, (size_t)n + 1, items));
  case 7:
    for (int d = 0, k = 0; k < 6; k++)
      if (order[k] < n) items_order[d++] = order[k];
    return n <= 6 ? TENSOR("permute", of_tensor(t), of_ints(items_order, (size_t)n, items)) : NULL;
  case 8: return n ? TENSOR("flatten.using_ints", of_tensor(t), of_int(dim), of_int(-1)) : NULL;
  case 9: return n ? TENSOR("flip", of_tensor(t), of_int(dim)) : NULL;
  case 10: return TENSOR("clone", of_tensor(t));
  default: return TENSOR("to", of_tensor(t), of_name(c % 2 ? "float64" : "int32"));
  }
}

static xt_tensor *swap(xt_tensor *old, xt_tensor *replacement) {
  xt_plain_drop(old);
  return replacement;
}

/* 2,000 chains of random operators. */
static void views_have_the_values_of_copies(void) {
  for (int round = 0; round < 2000; round++) {
    xt_tensor *flat = numbers(120), *t = TENSOR("view", of_tensor(flat), INTS(2, 3, 4, 5)), *copy = NULL;
    xt_plain_drop(flat);
    for (int step = 0; step < 6; step++) {
      int64_t order[6] = {0, 1, 2, 3, 4, 5}, a = pick(6), b = pick(60), c = pick(3);
      for (int i = 5; i > 0; i--) {
        int64_t j = pick(i + 1), kept = order[i];
        order[i] = order[j], order[j] = kept;
      }
      int which = (int)pick(12);
      CHECK(api->tensor_plain(t, &copy, &plain_error) == XT_STATUS_ok && copy->info.contiguous);
      for (int64_t i = 0; i < t->info.numel; i++)
        CHECK(element_at(t, i).re == element_at(copy, i).re && element_at(t, i).i == element_at(copy, i).i);
      xt_tensor *view = random_view(t, which, a, b, c, order), *model = random_view(copy, which, a, b, c, order);
      xt_plain_drop(copy);
      if (!view) continue;
      bool equal = false;
      CHECK(has_shape(view, model->info.ndim, model->info.sizes, NULL));
      CHECK(api->tensor_equal(view, model, &equal, &plain_error) == XT_STATUS_ok && equal);
      xt_plain_drop(model);
      t = swap(t, view);
    }
    xt_plain_drop(t);
  }
}

/* ---- Examples ---- */

static void views_share_memory(void) {
  xt_tensor *t = numbers(6), *m = TENSOR("reshape", of_tensor(t), INTS(2, 3)), *x;
  CHECK(m->info.data == t->info.data && has_shape(m, 2, (int64_t[]){2, 3}, (int64_t[]){3, 1}));
  x = TENSOR("t", of_tensor(m));
  CHECK(HAS(x, 0, 3, 1, 4, 2, 5) && has_shape(x, 2, (int64_t[]){3, 2}, (int64_t[]){1, 3}));
  FAILS(bad_argument, "view", of_tensor(x), INTS(6));
  x = swap(x, TENSOR("reshape", of_tensor(x), INTS(6)));
  CHECK(HAS(x, 0, 3, 1, 4, 2, 5) && x->info.data != t->info.data);
  x = swap(x, TENSOR("select.int", of_tensor(m), of_int(1), of_int(-1)));
  CHECK(HAS(x, 2, 5));
  x = swap(x, TENSOR("expand", of_tensor(x), INTS(2, -1)));
  CHECK(HAS(x, 2, 5, 2, 5) && has_shape(x, 2, (int64_t[]){2, 2}, (int64_t[]){0, 3}));
  x = swap(x, TENSOR("as_strided", of_tensor(t), INTS(2, 2), INTS(1, 2), of_int(1)));
  CHECK(HAS(x, 1, 3, 2, 4));
  x = swap(x, TENSOR("view.dtype", of_tensor(t), of_name("int32")));
  CHECK(x->info.numel == 12 && element_at(x, 2).i == 1);
  x = swap(x, TENSOR("view.dtype", of_tensor(t), of_name("float64")));
  CHECK(x->info.numel == 6 && x->info.dtype == XT_float64);
  xt_plain_drop(x), xt_plain_drop(m), xt_plain_drop(t);
}

static void splits(void) {
  xt_arena arena = {NULL};
  xt_value *results;
  size_t count;
  xt_tensor *t = numbers(7);
  xt_op_call call = {.name = "chunk", .args = (xt_value[]){of_tensor(t), of_int(3)}, .arg_count = 2};
  CHECK(api->op(&call, &arena, &results, &count, &plain_error) == XT_STATUS_ok && count == 1);
  CHECK(results->list.count == 3 && HAS(results->list.items[0].tensor, 0, 1, 2) &&
        HAS(results->list.items[2].tensor, 6));
  for (int i = 0; i < 3; i++) xt_plain_drop(results->list.items[i].tensor);
  call.name = "split";
  fail_arenas = false, allocations = 0, fail_at = 1; /* the second handle */
  CHECK(api->op(&call, &arena, &results, &count, &plain_error) == XT_STATUS_no_memory);
  fail_at = -1;
  xt_plain_drop(t);
  xt_arena_free(&arena);
  CHECK(live_tensors() == 0);
}

static void joins(void) {
  xt_tensor *a = numbers(4), *m = TENSOR("view", of_tensor(a), INTS(2, 2)), *x, *none = numbers(0);
  xt_value list[] = {of_tensor(m), of_tensor(none), of_tensor(m)}, pair[] = {of_tensor(m), of_tensor(m)},
           wrong[] = {of_tensor(m), of_tensor(a)};
  x = TENSOR("cat", of_list(list, 3), of_int(1));
  CHECK(HAS(x, 0, 1, 0, 1, 2, 3, 2, 3));
  x = swap(x, TENSOR("stack", of_list(pair, 2), of_int(-1)));
  CHECK(HAS(x, 0, 0, 1, 1, 2, 2, 3, 3) && has_shape(x, 3, (int64_t[]){2, 2, 2}, NULL));
  FAILS(bad_argument, "cat", of_list(wrong, 2));
  FAILS(bad_argument, "stack", of_list(wrong, 2));
  FAILS(bad_argument, "cat", of_list(pair, 2), of_int(2));
  FAILS(bad_argument, "cat", of_list(pair, 0));
  FAILS(bad_argument, "cat", of_tensor(m));
  xt_plain_drop(x), xt_plain_drop(m), xt_plain_drop(a), xt_plain_drop(none);
}

static void creates(void) {
  xt_tensor *x = TENSOR("full", INTS(2, 2), of_float(INFINITY));
  CHECK(x->info.dtype == XT_float32 && isinf(element_at(x, 3).re));
  x = swap(x, TENSOR("full", INTS(2), of_bool(true)));
  CHECK(x->info.dtype == XT_bool && HAS(x, 1, 1));
  x = swap(x, TENSOR("zeros", INTS(3), of_name("uint8")));
  CHECK(HAS(x, 0, 0, 0));
  x = swap(x, TENSOR("ones_like", of_tensor(x), of_name("complex64")));
  CHECK(element_at(x, 2).re == 1 && element_at(x, 2).im == 0);
  x = swap(x, TENSOR("arange.start_step", of_int(5), of_int(-1), of_int(-2)));
  CHECK(HAS(x, 5, 3, 1));
  x = swap(x, TENSOR("arange", of_float(0), of_float(1), of_float(0.25)));
  CHECK(x->info.dtype == XT_float32 && x->info.numel == 4 && element_at(x, 3).re == 0.75);
  x = swap(x, TENSOR("empty_strided", INTS(2, 3), INTS(1, 2)));
  CHECK(!x->info.contiguous && x->info.span == 24);
  x = swap(x, TENSOR("zeros_like", of_tensor(x)));
  CHECK(has_shape(x, 2, (int64_t[]){2, 3}, (int64_t[]){1, 2}) && element_at(x, 5).re == 0);
  double sum = 0, squares = 0;
  api->manual_seed(1);
  x = swap(x, TENSOR("randn", INTS(5000)));
  for (int64_t i = 0; i < 5000; i++) sum += element_at(x, i).re, squares += pow(element_at(x, i).re, 2);
  CHECK(fabs(sum / 5000) < 0.1 && fabs(squares / 5000 - 1) < 0.1);
  api->manual_seed(1);
  xt_tensor *again = TENSOR("randn", INTS(5000));
  bool equal = false;
  CHECK(api->tensor_equal(x, again, &equal, &plain_error) == XT_STATUS_ok && equal);
  again = swap(again, TENSOR("rand", INTS(5000), of_name("float64")));
  for (int64_t i = 0; i < 5000; i++) CHECK(element_at(again, i).re >= 0 && element_at(again, i).re < 1);
  FAILS(bad_argument, "rand", INTS(2), of_name("int8"));
  xt_plain_drop(x), xt_plain_drop(again);
  FAILS(bad_argument, "zeros", INTS(1ll << 40, 1ll << 40));
  FAILS(bad_argument, "zeros", INTS(-1));
  FAILS(bad_argument, "zeros", INTS(1), of_name("qint8"));
  FAILS(unsupported, "zeros", INTS(1), of_name("bits8"));
  FAILS(bad_argument, "arange", of_int(0), of_int(5), of_int(0));
  FAILS(bad_argument, "arange", of_int(0), of_int(5), of_int(-1));
  FAILS(bad_argument, "full", INTS(1));
  FAILS(unsupported, "zeros", INTS(1), of_name("int8"), of_name("strided"), of_name("cuda"));
}

/* Memory that is frozen is not written, by whatever view. */
static void respects_frozen_memory(void) {
  xt_tensor *t = numbers(6), *part = TENSOR("narrow", of_tensor(t), of_int(0), of_int(2), of_int(2)), *x;
  xt_frozen node;
  xt_frozen_add(&node, part->info.data, 8);
  FAILS(frozen, "fill_", of_tensor(t), of_int(9));
  FAILS(frozen, "zero_", of_tensor(part));
  FAILS(frozen, "copy_", of_tensor(part), of_tensor(part));
  x = TENSOR("select.int", of_tensor(part), of_int(0), of_int(1));
  x = swap(x, TENSOR("fill_", of_tensor(x), of_int(9)));
  CHECK(HAS(t, 0, 1, 2, 9, 4, 5));
  xt_frozen_remove(&node);
  x = swap(x, TENSOR("zero_", of_tensor(part)));
  CHECK(HAS(t, 0, 1, 0, 0, 4, 5) && x->info.data == part->info.data);
  xt_plain_drop(x), xt_plain_drop(part), xt_plain_drop(t);
}

static void copies_in_place(void) {
  xt_tensor *t = numbers(6), *m = TENSOR("view", of_tensor(t), INTS(2, 3)),
            *row = TENSOR("full", INTS(3), of_float(7.9));
  xt_tensor *x = TENSOR("copy_", of_tensor(m), of_tensor(row));
  CHECK(HAS(t, 7, 7, 7, 7, 7, 7)); /* converted, and repeated */
  x = swap(x, TENSOR("arange", of_int(6)));
  xt_plain_drop(TENSOR("copy_", of_tensor(t), of_tensor(x)));
  /* overlapping memory */
  x = swap(x, TENSOR("narrow", of_tensor(t), of_int(0), of_int(0), of_int(5)));
  xt_tensor *tail = TENSOR("narrow", of_tensor(t), of_int(0), of_int(1), of_int(5));
  xt_plain_drop(TENSOR("copy_", of_tensor(tail), of_tensor(x)));
  CHECK(HAS(t, 0, 0, 1, 2, 3, 4));
  FAILS(bad_argument, "copy_", of_tensor(m), of_tensor(t));
  FAILS(bad_argument, "copy_", of_tensor(row), of_tensor(m));
  xt_plain_drop(x), xt_plain_drop(tail), xt_plain_drop(t), xt_plain_drop(m), xt_plain_drop(row);
}

static void copies_keep_the_order_of_dimensions(void) {
  xt_tensor *t = numbers(6), *m = TENSOR("view", of_tensor(t), INTS(2, 3)), *turned = TENSOR("t", of_tensor(m)), *x;
  x = TENSOR("clone", of_tensor(turned));
  CHECK(has_shape(x, 2, (int64_t[]){3, 2}, (int64_t[]){1, 3}) && HAS(x, 0, 3, 1, 4, 2, 5));
  x = swap(x, TENSOR("clone", of_tensor(turned), of_name("contiguous_format")));
  CHECK(x->info.contiguous && HAS(x, 0, 3, 1, 4, 2, 5));
  x = swap(x, TENSOR("to", of_tensor(turned), of_name("int8")));
  CHECK(has_shape(x, 2, (int64_t[]){3, 2}, (int64_t[]){1, 3}) && HAS(x, 0, 3, 1, 4, 2, 5));
  x = swap(x, TENSOR("to", of_tensor(turned), of_name("int64")));
  CHECK(x->info.data == t->info.data);
  FAILS(bad_argument, "contiguous", of_tensor(m), of_name("channels_last"));
  xt_plain_drop(x), xt_plain_drop(turned), xt_plain_drop(m), xt_plain_drop(t);
}

/* A matrix larger than the tiles in which it is copied. */
static void copies_large_transposed_matrices(void) {
  enum { ROWS = 150, COLUMNS = 131 };
  xt_tensor *t = numbers(ROWS * COLUMNS), *m = TENSOR("view", of_tensor(t), INTS(ROWS, COLUMNS));
  xt_tensor *turned = TENSOR("t", of_tensor(m)), *x = TENSOR("contiguous", of_tensor(turned));
  for (int64_t i = 0; i < ROWS * COLUMNS; i++) CHECK(element_at(x, i).i == i % ROWS * COLUMNS + i / ROWS);
  xt_plain_drop(x), xt_plain_drop(turned), xt_plain_drop(m), xt_plain_drop(t);
}

static void compares_numbers(void) {
  bool equal;
  double nan = NAN, zero = 0, minus = -0.0;
  xt_value out;
  xt_tensor *a = TENSOR("full", INTS(300), of_float(nan)), *b = TENSOR("full", INTS(300), of_float(zero)),
            *c = TENSOR("full", INTS(300), of_float(minus));
  CHECK(api->tensor_equal(a, a, &equal, &plain_error) == XT_STATUS_ok && !equal);
  CHECK(api->tensor_equal(b, c, &equal, &plain_error) == XT_STATUS_ok && equal);
  xt_tensor *last = TENSOR("select.int", of_tensor(c), of_int(0), of_int(299));
  xt_plain_drop(TENSOR("fill_", of_tensor(last), of_int(1)));
  OP(XT_STATUS_ok, &out, "equal", of_tensor(b), of_tensor(c));
  CHECK(out.kind == XT_VALUE_BOOL && !out.boolean);
  OP(XT_STATUS_ok, &out, "item", of_tensor(last));
  CHECK(out.kind == XT_VALUE_FLOAT && out.number == 1);
  FAILS(bad_argument, "item", of_tensor(c));
  xt_plain_drop(a), xt_plain_drop(b), xt_plain_drop(c), xt_plain_drop(last);
}

static void resolves_conj_and_neg(void) {
  xt_tensor *t = TENSOR("full", INTS(2), (xt_value){.kind = XT_VALUE_COMPLEX, .complex = {1, 2}});
  xt_tensor *x = TENSOR("aten::_conj", of_tensor(t));
  CHECK(element_at(x, 1).re == 1 && element_at(x, 1).im == -2 && element_at(t, 1).im == 2);
  x = swap(x, TENSOR("aten::_neg_view", of_tensor(x)));
  CHECK(element_at(x, 0).re == -1 && element_at(x, 0).im == 2);
  t = swap(t, numbers(3));
  x = swap(x, TENSOR("aten::_neg_view", of_tensor(t)));
  CHECK(HAS(x, 0, -1, -2));
  xt_plain_drop(x), xt_plain_drop(t);
}

static void says_what_is_missing(void) {
  xt_tensor *t = numbers(3);
  FAILS(unsupported, "aten::add.Tensor", of_tensor(t), of_int(1));
  CHECK(strstr(plain_error.message, "aten::add.Tensor") && strstr(plain_error.message, "Do this."));
  FAILS(unsupported, "_conj", of_tensor(t)); /* internal names are given in full */
  FAILS(unsupported, "to", of_tensor(t), of_name("cuda"));
  xt_plain_drop(t);
}

static void refuses_wrong_arguments(void) {
  xt_tensor *t = numbers(6);
  xt_named_value kwarg = {"dimm", of_int(0)};
  xt_op_call call = {
      .name = "select", .args = (xt_value[]){of_tensor(t)}, .arg_count = 1, .kwargs = &kwarg, .kwarg_count = 1};
  xt_arena arena = {NULL};
  xt_value *results;
  size_t count;
  CHECK(api->op(&call, &arena, &results, &count, &plain_error) == XT_STATUS_bad_argument);
  CHECK(strstr(plain_error.message, "`dimm`"));
  xt_arena_free(&arena);
  FAILS(bad_argument, "t", of_tensor(t), of_int(1));
  FAILS(bad_argument, "t", of_int(1));
  FAILS(bad_argument, "select", of_tensor(t), of_int(1), of_int(0));
  FAILS(bad_argument, "select", of_tensor(t), of_int(0), of_int(6));
  FAILS(bad_argument, "select", of_tensor(t), of_float(0), of_int(0));
  FAILS(bad_argument, "slice", of_tensor(t), of_int(0), of_int(0), of_int(3), of_int(0));
  FAILS(bad_argument, "narrow", of_tensor(t), of_int(0), of_int(4), of_int(3));
  FAILS(bad_argument, "narrow", of_tensor(t), of_int(0), of_int(INT64_MIN), of_int(1));
  FAILS(bad_argument, "narrow", of_tensor(t), of_int(0), of_int(1), of_int(INT64_MAX));
  FAILS(bad_argument, "reshape", of_tensor(t), INTS(4));
  FAILS(bad_argument, "reshape", of_tensor(t), INTS(-1, -1));
  FAILS(bad_argument, "reshape", of_tensor(t), INTS(0, -1));
  FAILS(bad_argument, "reshape", of_tensor(t), INTS(INT64_MAX, INT64_MAX));
  FAILS(bad_argument, "permute", of_tensor(t), INTS(0, 0));
  FAILS(bad_argument, "expand", of_tensor(t), INTS(5));
  FAILS(bad_argument, "expand", of_tensor(t), INTS(-1, 6));
  FAILS(bad_argument, "as_strided", of_tensor(t), INTS(7), INTS(1));
  FAILS(bad_argument, "as_strided", of_tensor(t), INTS(1), INTS(1), of_int(6));
  FAILS(bad_argument, "as_strided", of_tensor(t), INTS(2), INTS(INT64_MAX));
  FAILS(bad_argument, "as_strided", of_tensor(t), INTS(2), INTS(-1), of_int(3));
  FAILS(bad_argument, "as_strided", of_tensor(t), INTS(1), INTS(1), of_int(INT64_MAX));
  FAILS(bad_argument, "flip", of_tensor(t), INTS(0, 0));
  FAILS(bad_argument, "chunk", of_tensor(t), of_int(0));
  FAILS(bad_argument, "to", of_tensor(t), of_name("int64"), of_name("sparse_coo"));
  FAILS(bad_argument, "fill_", of_tensor(t), of_name("red"));
  xt_tensor *none = TENSOR("as_strided", of_tensor(t), INTS(0), INTS(1), of_int(1 << 20)); /* no elements: any offset */
  CHECK(none->info.numel == 0);
  xt_tensor *huge = TENSOR("expand", of_tensor(none), INTS(1ll << 59, 0));
  FAILS(bad_argument, "expand", of_tensor(huge), INTS(1ll << 59, 0, 0));
  xt_plain_drop(t), xt_plain_drop(none), xt_plain_drop(huge);
}

/* Each allocation of these calls fails once. */
static void survives_failing_allocations(void) {
  static const char *const names[] = {"clone", "contiguous", "t", "zeros_like", "alias", "flatten"};
  xt_tensor *flat = numbers(6), *m = TENSOR("view", of_tensor(flat), INTS(2, 3)), *t = TENSOR("t", of_tensor(m));
  int64_t before = live_tensors();
  for (size_t i = 0; i < COUNT_OF(names); i++)
    for (long at = 0;; at++) {
      xt_arena arena = {NULL};
      xt_value arg = of_tensor(t), *results = NULL;
      size_t count;
      xt_op_call call = {.name = names[i], .args = &arg, .arg_count = 1};
      allocations = 0, fail_arenas = true, fail_at = at;
      xt_status status = api->op(&call, &arena, &results, &count, &plain_error);
      fail_at = -1, fail_arenas = false;
      if (status == XT_STATUS_ok) xt_plain_drop(results[0].tensor);
      xt_arena_free(&arena);
      CHECK(live_tensors() == before);
      if (status == XT_STATUS_ok) break;
      CHECK(status == XT_STATUS_no_memory);
    }
  xt_plain_drop(t), xt_plain_drop(m), xt_plain_drop(flat);
}

int main(void) {
  api = xt_plain_open("Do this.");
  return RUN_TESTS("plain/operators", views_have_the_values_of_copies, views_share_memory, splits, joins, creates,
                   respects_frozen_memory, copies_in_place, copies_keep_the_order_of_dimensions,
                   copies_large_transposed_matrices, compares_numbers, resolves_conj_and_neg, says_what_is_missing,
                   refuses_wrong_arguments, survives_failing_allocations);
}
