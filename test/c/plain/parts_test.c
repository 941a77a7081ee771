/* Sparse and quantized tensors. */
#include "core/base/layout.h"
#include "failing.h"
#include "sample.h"

/* A tensor of int64, one row after another. */
static xt_tensor *matrix(const int64_t *data, int ndim, const int64_t *sizes) {
  xt_tensor *tensor = NULL;
  CHECK(api->tensor_empty(XT_int64, ndim, sizes, &tensor, &plain_error) == XT_STATUS_ok);
  if (tensor->info.numel) memcpy(tensor->info.data, data, (size_t)tensor->info.numel * 8);
  return tensor;
}

static xt_tensor *vector(const int64_t *data, int64_t count) { return matrix(data, 1, &count); }

static xt_status coo(const int64_t *indices, int64_t rows, int64_t count, xt_value size, xt_tensor **out) {
  xt_tensor *i = matrix(indices, 2, (int64_t[]){rows, count}), *v = vector((int64_t[]){7, 8, 9}, count);
  xt_arena arena = {NULL};
  xt_value args[] = {of_tensor(i), of_tensor(v), size}, *results = NULL;
  size_t n;
  xt_op_call check = {"aten::_validate_sparse_coo_tensor_args", args, 3, NULL, 0},
             make = {"aten::sparse_coo_tensor.indices_size", args, 3, NULL, 0};
  xt_status status = api->op(&check, &arena, &results, &n, &plain_error);
  CHECK(api->op(&make, &arena, &results, &n, &plain_error) == status);
  if (status == XT_STATUS_ok) *out = results[0].tensor;
  xt_arena_free(&arena);
  xt_plain_drop(i), xt_plain_drop(v);
  return status;
}

static void holds_coo_tensors(void) {
  xt_tensor *t = NULL;
  CHECK(coo((int64_t[]){0, 1, 2, 2, 0, 1}, 2, 3, INTS(3, 3), &t) == XT_STATUS_ok);
  CHECK(t->info.layout == XT_LAYOUT_COO && !t->info.strides && !t->info.plain && t->info.numel == 9);
  CHECK(t->info.device.type == XT_DEVICE_CPU && t->info.dtype == XT_int64);
  xt_tensor *indices = TENSOR("aten::_indices", of_tensor(t)), *values = TENSOR("aten::_values", of_tensor(t)), *copy;
  FAILS(frozen, "zero_", of_tensor(indices)); /* the indices are frozen, the values are not */
  xt_plain_drop(TENSOR("zero_", of_tensor(values)));
  copy = TENSOR("clone", of_tensor(t));
  xt_tensor *second = TENSOR("detach", of_tensor(t));
  FAILS(unsupported, "select", of_tensor(t), of_int(0), of_int(0));
  FAILS(unsupported, "to", of_tensor(t), of_name("int8"));
  xt_plain_drop(t);
  FAILS(frozen, "zero_", of_tensor(indices)); /* still, by the second handle */
  xt_plain_drop(second);
  xt_plain_drop(TENSOR("zero_", of_tensor(indices)));
  xt_plain_drop(copy), xt_plain_drop(indices), xt_plain_drop(values);
}

/* An index that occurs twice is a sum; `values` may have dimensions of their own. */
static void makes_coo_tensors_dense(void) {
  xt_tensor *t = NULL, *dense = NULL;
  CHECK(coo((int64_t[]){0, 1, 0, 2, 0, 2}, 2, 3, INTS(2, 3), &t) == XT_STATUS_ok);
  CHECK(api->tensor_plain(t, &dense, &plain_error) == XT_STATUS_ok);
  for (int64_t i = 0; i < 6; i++) CHECK((element_at(dense, i).i == (int64_t[]){0, 0, 16, 8, 0, 0}[i]));
  xt_plain_drop(t), xt_plain_drop(dense);
  xt_tensor *indices = matrix((int64_t[]){2, 0}, 2, (int64_t[]){1, 2});
  xt_tensor *values = matrix((int64_t[]){1, 2, 3, 4}, 2, (int64_t[]){2, 2});
  xt_tensor *halves = TENSOR("to", of_tensor(values), of_name("float16"));
  t = TENSOR("sparse_coo_tensor", of_tensor(indices), of_tensor(halves), INTS(3, 2));
  dense = TENSOR("to_dense", of_tensor(t));
  for (int64_t i = 0; i < 6; i++) CHECK((element_at(dense, i).re == (double[]){3, 4, 0, 0, 1, 2}[i]));
  bool equal = false;
  CHECK(api->tensor_equal(t, dense, &equal, &plain_error) == XT_STATUS_ok && equal);
  xt_tensor *turned = TENSOR("t", of_tensor(dense)), *sparse = TENSOR("to_sparse", of_tensor(turned));
  xt_tensor *places = TENSOR("aten::_indices", of_tensor(sparse));
  for (int64_t i = 0; i < 8; i++) CHECK((element_at(places, i).i == (int64_t[]){0, 0, 1, 1, 0, 2, 0, 2}[i]));
  CHECK(api->tensor_equal(sparse, turned, &equal, &plain_error) == XT_STATUS_ok && equal);
  xt_tensor *all[] = {t, dense, indices, values, halves, turned, sparse, places};
  for (size_t i = 0; i < COUNT_OF(all); i++) xt_plain_drop(all[i]);
}

static void refuses_wrong_coo_tensors(void) {
  xt_tensor *t = NULL;
  CHECK(coo((int64_t[]){0, 1, 2, 2, 0, 3}, 2, 3, INTS(3, 3), &t) == XT_STATUS_bad_argument);
  CHECK(coo((int64_t[]){0, 1, 2, 2, 0, -1}, 2, 3, INTS(3, 3), &t) == XT_STATUS_bad_argument);
  CHECK(coo((int64_t[]){0, 1, 2, 2, 0, 1}, 2, 3, INTS(3, 3, 3), &t) == XT_STATUS_bad_argument);
  CHECK(coo((int64_t[]){0, 1, 2, 2, 0, 1}, 2, 3, INTS(-3, 3), &t) == XT_STATUS_bad_argument);
  CHECK(coo((int64_t[]){0, 1, 2}, 1, 3, INTS(3), &t) == XT_STATUS_ok);
  xt_plain_drop(t);
  CHECK(coo(NULL, 2, 0, INTS(3, 0), &t) == XT_STATUS_ok);
  xt_plain_drop(t);
}

static xt_status csr(const int64_t *rows, int64_t row_count, const int64_t *columns, int64_t count, xt_value size,
                     const char *layout) {
  xt_tensor *a = vector(rows, row_count), *b = vector(columns, count), *c = vector((int64_t[]){7, 8, 9, 10}, count);
  xt_arena arena = {NULL};
  xt_value args[] = {of_tensor(a), of_tensor(b), of_tensor(c), size}, *results = NULL;
  xt_named_value kwarg = {"layout", of_name(layout)};
  size_t n;
  xt_op_call check = {"aten::_validate_sparse_compressed_tensor_args", args, 4, &kwarg, 1},
             make = {"aten::sparse_compressed_tensor", args, 4, &kwarg, 1};
  xt_status status = api->op(&check, &arena, &results, &n, &plain_error);
  CHECK(api->op(&make, &arena, &results, &n, &plain_error) == status);
  if (status == XT_STATUS_ok) {
    bool by_rows = !strcmp(layout, "sparse_csr");
    xt_tensor *t = results[0].tensor;
    xt_tensor *lines = TENSOR(by_rows ? "crow_indices" : "ccol_indices", of_tensor(t));
    xt_tensor *across = TENSOR(by_rows ? "col_indices" : "row_indices", of_tensor(t));
    xt_tensor *values = TENSOR("values", of_tensor(t));
    CHECK(lines->info.data == a->info.data && across->info.data == b->info.data && values->info.data == c->info.data);
    FAILS(bad_argument, by_rows ? "ccol_indices" : "crow_indices", of_tensor(t));
    FAILS(bad_argument, "is_coalesced", of_tensor(t));
    xt_plain_drop(lines), xt_plain_drop(across), xt_plain_drop(values), xt_plain_drop(t);
  }
  xt_arena_free(&arena);
  xt_plain_drop(a), xt_plain_drop(b), xt_plain_drop(c);
  return status;
}

static void checks_compressed_tensors(void) {
  int64_t rows[] = {0, 2, 4}, columns[] = {0, 2, 1, 2};
  CHECK(csr(rows, 3, columns, 4, INTS(2, 3), "sparse_csr") == XT_STATUS_ok);
  CHECK(csr(rows, 3, columns, 4, INTS(3, 2), "sparse_csc") == XT_STATUS_ok);
  CHECK(csr(rows, 3, columns, 4, INTS(3, 2), "sparse_csr") == XT_STATUS_bad_argument);
  CHECK(csr(rows, 3, columns, 4, INTS(2, 2), "sparse_csr") == XT_STATUS_bad_argument);
  CHECK(csr(rows, 3, columns, 4, INTS(2, 3), "sparse_bsr") == XT_STATUS_bad_argument);
  CHECK(csr(rows, 3, columns, 4, INTS(2, 3), "sparse_coo") == XT_STATUS_bad_argument);
  CHECK(csr(rows, 3, columns, 4, INTS(2), "sparse_csr") == XT_STATUS_bad_argument);
  CHECK(csr((int64_t[]){0, 3, 2}, 3, columns, 2, INTS(2, 3), "sparse_csr") == XT_STATUS_bad_argument);
  CHECK(csr((int64_t[]){1, 2, 4}, 3, columns, 4, INTS(2, 3), "sparse_csr") == XT_STATUS_bad_argument);
  CHECK(csr((int64_t[]){0, 5, 4}, 3, columns, 4, INTS(2, 3), "sparse_csr") == XT_STATUS_bad_argument);
  CHECK(csr((int64_t[]){0}, 1, NULL, 0, INTS(0, 3), "sparse_csr") == XT_STATUS_ok);
}

/* Two batches of a matrix of 2 x 4 with blocks of 1 x 2, by rows and by columns. */
static void makes_blocks_dense(void) {
  int64_t numbers[] = {1, 2, 3, 4, 5, 6, 7, 8};
  xt_tensor *values = matrix(numbers, 4, (int64_t[]){2, 2, 1, 2});
  xt_tensor *rows = matrix((int64_t[]){0, 1, 2, 0, 0, 2}, 2, (int64_t[]){2, 3});
  xt_tensor *across = matrix((int64_t[]){1, 0, 0, 1}, 2, (int64_t[]){2, 2});
  xt_arena arena = {NULL};
  xt_value args[] = {of_tensor(rows), of_tensor(across), of_tensor(values), INTS(2, 2, 4)}, *results = NULL;
  xt_named_value kwarg = {"layout", of_name("sparse_bsr")};
  size_t n;
  xt_op_call make = {"sparse_compressed_tensor", args, 4, &kwarg, 1};
  CHECK(api->op(&make, &arena, &results, &n, &plain_error) == XT_STATUS_ok);
  xt_tensor *t = results[0].tensor, *dense = TENSOR("to_dense", of_tensor(t));
  int64_t by_rows[] = {0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 5, 6, 7, 8};
  for (int64_t i = 0; i < 16; i++) CHECK(element_at(dense, i).i == by_rows[i]);
  xt_plain_drop(t), xt_plain_drop(dense);
  kwarg.value = of_name("sparse_bsc"); /* two lines are now two columns of blocks, and `across` has rows */
  CHECK(api->op(&make, &arena, &results, &n, &plain_error) == XT_STATUS_ok);
  t = results[0].tensor, dense = TENSOR("to_dense", of_tensor(t));
  int64_t by_columns[] = {0, 0, 3, 4, 1, 2, 0, 0, 0, 0, 5, 6, 0, 0, 7, 8};
  for (int64_t i = 0; i < 16; i++) CHECK(element_at(dense, i).i == by_columns[i]);
  xt_plain_drop(t), xt_plain_drop(dense);
  xt_arena_free(&arena);
  xt_plain_drop(values), xt_plain_drop(rows), xt_plain_drop(across);
}

/* (integer - zero point) * scale, for the whole tensor or for each row. */
static void holds_quantized_tensors(void) {
  xt_value out;
  xt_tensor *wide = vector((int64_t[]){0, 1, 2, 3, 4, 255}, 6),
            *bytes = TENSOR("to", of_tensor(wide), of_name("uint8"));
  xt_tensor *m = TENSOR("view", of_tensor(bytes), INTS(2, 3)), *plain = NULL;
  xt_tensor *q = TENSOR("aten::_make_per_tensor_quantized_tensor", of_tensor(m), of_float(0.5), of_int(2));
  CHECK(q->info.dtype == XT_quint8 && q->info.scheme == XT_SCHEME_PER_TENSOR && !q->info.plain);
  CHECK(api->tensor_plain(q, &plain, &plain_error) == XT_STATUS_ok && plain->info.dtype == XT_float32);
  CHECK(element_at(plain, 0).re == -1 && element_at(plain, 5).re == 126.5);
  OP(XT_STATUS_ok, &out, "q_scale", of_tensor(q));
  CHECK(out.number == 0.5);
  OP(XT_STATUS_ok, &out, "q_zero_point", of_tensor(q));
  CHECK(out.integer == 2);
  FAILS(bad_argument, "q_per_channel_axis", of_tensor(q));
  FAILS(unsupported, "t", of_tensor(q));
  xt_tensor *ints = TENSOR("int_repr", of_tensor(q));
  CHECK(ints->info.dtype == XT_uint8 && ints->info.data != m->info.data && element_at(ints, 5).i == 255);

  xt_tensor *scales = TENSOR("arange", of_float(1), of_float(3)), *zeros = vector((int64_t[]){0, 3}, 2), *marked = NULL;
  xt_tensor *c =
      TENSOR("aten::_make_per_channel_quantized_tensor", of_tensor(m), of_tensor(scales), of_tensor(zeros), of_int(0));
  FAILS(bad_argument, "aten::_make_per_channel_quantized_tensor", of_tensor(m), of_tensor(scales), of_tensor(zeros),
        of_int(1));
  FAILS(bad_argument, "aten::_make_per_channel_quantized_tensor", of_tensor(m), of_tensor(scales), of_tensor(zeros),
        of_int(2));
  FAILS(bad_argument, "aten::_make_per_tensor_quantized_tensor", of_tensor(scales), of_float(1), of_int(0));
  FAILS(frozen, "zero_", of_tensor(scales));
  CHECK(api->tensor_set_requires_grad(c, true, &marked, &plain_error) == XT_STATUS_ok && marked->requires_grad);
  xt_tensor *copy = TENSOR("clone", of_tensor(c));
  xt_plain_drop(c);
  FAILS(frozen, "zero_", of_tensor(scales));
  bool equal = false;
  CHECK(api->tensor_equal(marked, copy, &equal, &plain_error) == XT_STATUS_ok && equal);
  xt_plain_drop(marked);
  xt_plain_drop(TENSOR("zero_", of_tensor(scales)));
  xt_tensor *dense = TENSOR("dequantize", of_tensor(copy));
  CHECK(element_at(dense, 2).re == 2 && element_at(dense, 3).re == 0 && element_at(dense, 5).re == 504);
  xt_tensor *all[] = {wide, bytes, m, plain, q, ints, scales, zeros, copy, dense};
  for (size_t i = 0; i < COUNT_OF(all); i++) xt_plain_drop(all[i]);
}

/* Every allocation of a copy fails once; nothing stays frozen or alive. */
static void survives_failing_allocations(void) {
  xt_tensor *t = NULL;
  CHECK(coo((int64_t[]){0, 1, 2, 2, 0, 1}, 2, 3, INTS(3, 3), &t) == XT_STATUS_ok);
  int64_t before = live_tensors();
  static const char *const names[] = {"clone", "detach"};
  for (size_t i = 0; i < COUNT_OF(names); i++)
    for (long at = 0;; at++) {
      xt_arena arena = {NULL};
      xt_value arg = of_tensor(t), *results = NULL;
      size_t count;
      xt_op_call call = {.name = names[i], .args = &arg, .arg_count = 1};
      allocations = 0, fail_at = at;
      xt_status status = api->op(&call, &arena, &results, &count, &plain_error);
      fail_at = -1;
      if (status == XT_STATUS_ok) xt_plain_drop(results[0].tensor);
      xt_arena_free(&arena);
      CHECK(live_tensors() == before);
      if (status == XT_STATUS_ok) break;
    }
  xt_plain_drop(t);
  CHECK(live_tensors() == 0);
}

int main(void) {
  api = xt_plain_open("Do this.");
  return RUN_TESTS("plain/parts", holds_coo_tensors, makes_coo_tensors_dense, makes_blocks_dense,
                   refuses_wrong_coo_tensors, checks_compressed_tensors, holds_quantized_tensors,
                   survives_failing_allocations);
}
