/* Calls of operators, for the tests of plain/. */
#ifndef XT_TEST_PLAIN_SAMPLE_H
#define XT_TEST_PLAIN_SAMPLE_H

#include <string.h>

#include "check.h"
#include "core/base/element.h"
#include "plain/plain.h"

static const xt_torch_api *api;
static xt_error plain_error;

static inline xt_value of_tensor(xt_tensor *tensor) { return (xt_value){.kind = XT_VALUE_TENSOR, .tensor = tensor}; }
static inline xt_value of_int(int64_t integer) { return (xt_value){.kind = XT_VALUE_INT, .integer = integer}; }
static inline xt_value of_float(double number) { return (xt_value){.kind = XT_VALUE_FLOAT, .number = number}; }
static inline xt_value of_bool(bool boolean) { return (xt_value){.kind = XT_VALUE_BOOL, .boolean = boolean}; }
static inline xt_value of_name(const char *name) { return (xt_value){.kind = XT_VALUE_NAME, .name = {name, false, 0}}; }
static inline xt_value of_list(xt_value *items, size_t count) {
  return (xt_value){.kind = XT_VALUE_LIST, .list = {items, count}};
}

#define INTS(...)                                                                       \
  of_ints((int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), \
          (xt_value[sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)]){{0}})
static inline xt_value of_ints(const int64_t *ints, size_t count, xt_value *items) {
  for (size_t i = 0; i < count; i++) items[i] = of_int(ints[i]);
  return of_list(items, count);
}

/* Calls an operator with one result, which is not a list. */
#define OP(status, out, name, ...) \
  call_op(status, out, name, (xt_value[]){__VA_ARGS__}, sizeof((xt_value[]){__VA_ARGS__}) / sizeof(xt_value))
static inline void call_op(xt_status expected, xt_value *out, const char *name, const xt_value *args, size_t count) {
  xt_arena arena = {NULL};
  xt_value *results = NULL;
  size_t result_count = 0;
  xt_op_call call = {.name = name, .args = args, .arg_count = count};
  xt_status status = api->op(&call, &arena, &results, &result_count, &plain_error);
  if (status != expected) fprintf(stderr, "%s: %s\n", name, status ? plain_error.message : "ok");
  CHECK(status == expected);
  if (out && status == XT_STATUS_ok) *out = results[0];
  xt_arena_free(&arena);
}

#define TENSOR(name, ...) \
  tensor_op(name, (xt_value[]){__VA_ARGS__}, sizeof((xt_value[]){__VA_ARGS__}) / sizeof(xt_value))
static inline xt_tensor *tensor_op(const char *name, const xt_value *args, size_t count) {
  xt_value out;
  call_op(XT_STATUS_ok, &out, name, args, count);
  CHECK(out.kind == XT_VALUE_TENSOR);
  return out.tensor;
}

#define FAILS(status, name, ...) OP(XT_STATUS_##status, NULL, name, __VA_ARGS__)

/* Reads the element at an index, which may be beyond a row, of a tensor with any strides. */
static inline xt_element element_at(const xt_tensor *tensor, int64_t index) {
  const xt_tensor_info *info = &tensor->info;
  int64_t offset = 0;
  for (int d = info->ndim - 1; d >= 0; d--) {
    offset += index % info->sizes[d] * info->strides[d];
    index /= info->sizes[d];
  }
  return xt_element_read(info->dtype, (char *)info->data + offset * (int64_t)xt_dtype_get(info->dtype)->size);
}

static inline int64_t live_tensors(void) { return atomic_load(&xt_memory_live.tensors); }

#endif
