#include "plain/arguments.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/convert.h"
#include "core/base/layout.h"

/* ---- Binding ---- */

/* Returns the name of a parameter and its length, or NULL after the last one. */
static const char *parameter_name(const char *names, int index, int *length) {
  while (*names && index--) {
    names += strcspn(names, " ");
    names += *names == ' ';
  }
  *length = (int)strcspn(names, " ");
  return *names ? names : NULL;
}

static int find_parameter(const xt_plain_call *call, const char *name) {
  int length;
  const char *text;
  for (int i = 0; (text = parameter_name(call->parameters, i, &length)); i++)
    if ((int)strlen(name) == length && !memcmp(text, name, (size_t)length)) return i;
  return -1;
}

static void set_value(xt_plain_call *call, int parameter, const xt_value *value) {
  call->values[parameter] = value->kind == XT_VALUE_NIL ? NULL : value;
}

xt_status xt_plain_bind(xt_plain_call *call, const xt_op_call *op) {
  int length;
  for (size_t i = 0; i < op->arg_count; i++) {
    if (i >= XT_PLAIN_MAX_PARAMETERS || !parameter_name(call->parameters, (int)i, &length))
      return xt_error_set(call->error, XT_STATUS_bad_argument, "%s has the parameters (%s), got %zu arguments",
                          call->name, call->parameters, op->arg_count);
    set_value(call, (int)i, &op->args[i]);
  }
  for (size_t i = 0; i < op->kwarg_count; i++) {
    int parameter = find_parameter(call, op->kwargs[i].name);
    if (parameter < 0)
      return xt_error_set(call->error, XT_STATUS_bad_argument, "%s has no parameter `%.64s`; it has (%s)", call->name,
                          op->kwargs[i].name, call->parameters);
    set_value(call, parameter, &op->kwargs[i].value);
  }
  return XT_STATUS_ok;
}

xt_status xt_plain_invalid(xt_plain_call *call, int parameter, const char *message) {
  int length;
  const char *name = parameter_name(call->parameters, parameter, &length);
  if (call->status != XT_STATUS_ok) return call->status; /* the first error counts */
  call->status = xt_error_set(call->error, XT_STATUS_bad_argument, "%s: `%.*s` %s", call->name, length, name, message);
  return call->status;
}

bool xt_plain_has(const xt_plain_call *call, int parameter) { return call->values[parameter] != NULL; }

/* ---- Tensors ---- */

xt_tensor *xt_plain_any_arg(xt_plain_call *call, int parameter) {
  const xt_value *value = call->values[parameter];
  if (value && value->kind == XT_VALUE_TENSOR) return value->tensor;
  xt_plain_invalid(call, parameter, "is not a tensor");
  return NULL;
}

static xt_tensor *check_memory(xt_plain_call *call, xt_tensor *tensor) {
  if (call->status != XT_STATUS_ok || !tensor || !xt_plain_of(tensor)->parts) return tensor;
  call->status = xt_error_set(call->error, XT_STATUS_unsupported, "%s of a %s tensor needs LibTorch. %s", call->name,
                              tensor->info.scheme ? "quantized" : xt_layout_name(tensor->info.layout), xt_plain_hint);
  return tensor;
}

xt_tensor *xt_plain_tensor_arg(xt_plain_call *call, int parameter) {
  return check_memory(call, xt_plain_any_arg(call, parameter));
}

const xt_value *xt_plain_tensors_arg(xt_plain_call *call, int parameter, size_t *count) {
  const xt_value *value = call->values[parameter];
  *count = 0;
  if (!value || value->kind != XT_VALUE_LIST || !value->list.count) {
    xt_plain_invalid(call, parameter, "is not a list of tensors");
    return NULL;
  }
  for (size_t i = 0; i < value->list.count; i++) {
    const xt_value *item = &value->list.items[i];
    if (item->kind != XT_VALUE_TENSOR) xt_plain_invalid(call, parameter, "has an element that is not a tensor");
    else if (call->status == XT_STATUS_ok && check_memory(call, item->tensor) && call->status == XT_STATUS_ok)
      call->status = xt_plain_check_strided(item->tensor, call->error);
  }
  *count = value->list.count;
  return value->list.items;
}

/* ---- Numbers ---- */

int64_t xt_plain_int_arg(xt_plain_call *call, int parameter, int64_t otherwise) {
  const xt_value *value = call->values[parameter];
  if (!value) return otherwise;
  if (value->kind == XT_VALUE_INT) return value->integer;
  xt_plain_invalid(call, parameter, "is not an integer");
  return otherwise;
}

bool xt_plain_bool_arg(xt_plain_call *call, int parameter, bool otherwise) {
  const xt_value *value = call->values[parameter];
  if (!value) return otherwise;
  if (value->kind == XT_VALUE_BOOL) return value->boolean;
  xt_plain_invalid(call, parameter, "is not a boolean");
  return otherwise;
}

void xt_plain_ints_arg(xt_plain_call *call, int parameter, int64_t *ints, int *count) {
  const xt_value *value = call->values[parameter];
  *count = 0;
  if (value && value->kind == XT_VALUE_INT) {
    *count = 1;
    *ints = value->integer;
    return;
  }
  if (!value || value->kind != XT_VALUE_LIST || value->list.count > XT_MAX_DIMS) {
    xt_plain_invalid(call, parameter, "is not a list of at most 64 integers");
    return;
  }
  for (size_t i = 0; i < value->list.count; i++) {
    const xt_value *item = &value->list.items[i];
    if (item->kind != XT_VALUE_INT) xt_plain_invalid(call, parameter, "has an element that is not an integer");
    else ints[i] = item->integer;
  }
  *count = call->status == XT_STATUS_ok ? (int)value->list.count : 0;
}

int xt_plain_dim_arg(xt_plain_call *call, int parameter, int64_t otherwise, int ndim) {
  int64_t dim = xt_plain_int_arg(call, parameter, otherwise);
  if (dim < 0) dim += ndim;
  if (dim >= 0 && dim < ndim) return (int)dim;
  xt_plain_invalid(call, parameter, "is not a dimension of the tensor");
  return 0;
}

/* :infinity, :neg_infinity and :nan; Elixir's floats cannot represent these values. */
static bool special_float(const xt_value *value, double *out) {
  if (value->kind != XT_VALUE_NAME || value->name.indexed) return false;
  if (!strcmp(value->name.text, "infinity")) *out = INFINITY;
  else if (!strcmp(value->name.text, "neg_infinity")) *out = -INFINITY;
  else if (!strcmp(value->name.text, "nan")) *out = NAN;
  else return false;
  return true;
}

xt_plain_scalar xt_plain_scalar_arg(xt_plain_call *call, int parameter, int64_t otherwise) {
  const xt_value *value = call->values[parameter];
  xt_plain_scalar scalar = {.dtype = XT_int64, .integer = otherwise};
  if (!value) return scalar;
  switch (value->kind) {
  case XT_VALUE_BOOL: return (xt_plain_scalar){.dtype = XT_bool, .integer = value->boolean};
  case XT_VALUE_INT: return (xt_plain_scalar){.dtype = XT_int64, .integer = value->integer};
  case XT_VALUE_FLOAT: return (xt_plain_scalar){.dtype = XT_float64, .parts = {value->number}};
  case XT_VALUE_COMPLEX:
    return (xt_plain_scalar){.dtype = XT_complex128, .parts = {value->complex.re, value->complex.im}};
  default:
    scalar.dtype = XT_float64;
    if (!special_float(value, scalar.parts)) xt_plain_invalid(call, parameter, "is not a number");
    return scalar;
  }
}

double xt_plain_float_arg(xt_plain_call *call, int parameter, double otherwise) {
  if (!xt_plain_has(call, parameter)) return otherwise;
  xt_plain_scalar scalar = xt_plain_scalar_arg(call, parameter, 0);
  if (scalar.dtype == XT_complex128) xt_plain_invalid(call, parameter, "is a complex number");
  return scalar.dtype == XT_int64 || scalar.dtype == XT_bool ? (double)scalar.integer : scalar.parts[0];
}

/* ---- Dtypes and devices ---- */

static xt_dtype get_dtype(const xt_value *value) {
  if (!value || value->kind != XT_VALUE_NAME) return XT_DTYPE_COUNT;
  return value->name.indexed ? xt_dtype_from_nx(value->name.text, value->name.index)
                             : xt_dtype_from_name(value->name.text);
}

bool xt_plain_is_dtype(const xt_plain_call *call, int parameter) {
  return get_dtype(call->values[parameter]) != XT_DTYPE_COUNT;
}

xt_dtype xt_plain_dtype_arg(xt_plain_call *call, int parameter, xt_dtype otherwise) {
  if (!xt_plain_has(call, parameter)) return otherwise;
  xt_dtype dtype = get_dtype(call->values[parameter]);
  if (dtype != XT_DTYPE_COUNT) return dtype;
  xt_plain_invalid(call, parameter, "is not a dtype");
  return otherwise;
}

xt_device xt_plain_device_arg(xt_plain_call *call, int parameter) {
  const xt_value *value = call->values[parameter];
  xt_device device = {XT_DEVICE_CPU, -1};
  if (!value) return device;
  const char *name = value->kind == XT_VALUE_NAME   ? value->name.text
                     : value->kind == XT_VALUE_TEXT ? value->text.data
                                                    : "";
  char type[XT_DEVICE_NAME];
  snprintf(type, sizeof type, "%.*s", (int)strcspn(name, ":"), name); /* "cuda:0" */
  device.type = xt_device_type_from_name(type);
  if (call->status == XT_STATUS_ok) call->status = xt_plain_check_device(device, call->error);
  return device;
}
