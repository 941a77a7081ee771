/* Operators that make tensors with memory of their own, and those that write to memory. */
#include <string.h>

#include "core/base/convert.h"
#include "core/base/element.h"
#include "plain/arguments.h"

static xt_status alias(xt_plain_call *call, const xt_tensor *tensor, xt_value *out) {
  xt_tensor *same = NULL;
  return xt_plain_return(xt_plain_tensor_set_requires_grad(tensor, false, &same, call->error), &same, out);
}

/* Fails for channels_last and the like. */
static xt_status check_format(xt_plain_call *call, int parameter) {
  const xt_value *value = call->values[parameter];
  if (!value || (value->kind == XT_VALUE_NAME &&
                 (!strcmp(value->name.text, "contiguous_format") || !strcmp(value->name.text, "preserve_format"))))
    return call->status;
  return xt_plain_invalid(call, parameter, "is not supported without LibTorch; use :contiguous_format");
}

/* Layouts other than :strided, and pinned memory. */
static void check_options(xt_plain_call *call, int layout, int pin_memory) {
  const xt_value *value = call->values[layout];
  if (value && (value->kind != XT_VALUE_NAME || strcmp(value->name.text, "strided")))
    xt_plain_invalid(call, layout, "is not supported without LibTorch; expected :strided");
  if (xt_plain_bool_arg(call, pin_memory, false))
    xt_plain_invalid(call, pin_memory, "is true, but pinned memory needs LibTorch and a device");
}

/* ---- Copies ---- */

xt_status xt_plain_op_contiguous(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_any_arg(call, 0), *result = NULL;
  if (check_format(call, 1) != XT_STATUS_ok) return call->status;
  if (self->info.contiguous) return alias(call, self, out);
  self = xt_plain_tensor_arg(call, 0);
  if (call->status != XT_STATUS_ok) return call->status;
  return xt_plain_return(xt_plain_contiguous(self, &result, call->error), &result, out);
}

xt_status xt_plain_op_clone(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_any_arg(call, 0), *result = NULL;
  if (check_format(call, 1) != XT_STATUS_ok) return call->status;
  if (self->info.device.type == XT_DEVICE_META) return alias(call, self, out);
  if (xt_plain_of(self)->parts) return xt_plain_return(xt_plain_clone_parts(self, &result, call->error), &result, out);
  const xt_value *format = call->values[1];
  bool keeps = !format || !strcmp(format->name.text, "preserve_format");
  xt_plain_shape shape = xt_plain_shape_of(self);
  xt_status status = keeps ? xt_plain_clone(self, &result, call->error) : xt_plain_empty(&shape, &result, call->error);
  if (status == XT_STATUS_ok && !keeps) xt_plain_copy(&result->info, &self->info);
  return xt_plain_return(status, &result, out);
}

/* to.dtype_layout; also to.dtype and to.device, whose second argument is one of both. */
xt_status xt_plain_op_to(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_any_arg(call, 0), *result = NULL;
  if (call->values[1] && !xt_plain_is_dtype(call, 1) && !call->values[3]) {
    call->values[3] = call->values[1];
    call->values[1] = NULL;
  }
  check_options(call, 2, 4);
  if (check_format(call, 7) != XT_STATUS_ok) return call->status;
  xt_dtype dtype = xt_plain_dtype_arg(call, 1, self->info.dtype);
  xt_device device = call->values[3] ? xt_plain_device_arg(call, 3) : self->info.device;
  bool copy = xt_plain_bool_arg(call, 6, false);
  xt_plain_bool_arg(call, 5, false);
  if (call->status != XT_STATUS_ok) return call->status;
  if (dtype == self->info.dtype && device.type == self->info.device.type && copy) {
    call->values[1] = NULL;
    return xt_plain_op_clone(call, out);
  }
  return xt_plain_return(xt_plain_tensor_to(self, dtype, device, &result, call->error), &result, out);
}

/* Elements of torch's lazy views, resolved: the conjugate or the negated values. */
static xt_status mapped(xt_plain_call *call, bool negate, xt_value *out) {
  xt_tensor *self = xt_plain_tensor_arg(call, 0), *copy = NULL;
  if (call->status != XT_STATUS_ok) return call->status;
  xt_kind kind = xt_dtype_get(self->info.dtype)->kind;
  bool changes = xt_convert_supported(self->info.dtype) && (negate || kind == XT_KIND_COMPLEX);
  if (!changes || self->info.device.type == XT_DEVICE_META) return alias(call, self, out);
  xt_status status = xt_plain_clone(self, &copy, call->error);
  size_t size = xt_dtype_get(self->info.dtype)->size;
  xt_numbers numbers;
  for (size_t done = 0; status == XT_STATUS_ok && done < (size_t)copy->info.numel; done += XT_NUMBERS) {
    size_t count = (size_t)copy->info.numel - done < XT_NUMBERS ? (size_t)copy->info.numel - done : XT_NUMBERS;
    xt_numbers_read(&numbers, self->info.dtype, (char *)copy->info.data + done * size, count);
    for (size_t n = 0; n < count; n++) {
      if (kind == XT_KIND_COMPLEX) numbers.im[n] = -numbers.im[n];
      if (negate && (kind == XT_KIND_COMPLEX || kind == XT_KIND_FLOAT)) numbers.re[n] = -numbers.re[n];
      else if (negate) numbers.i[n] = (int64_t)(0 - (uint64_t)numbers.i[n]);
    }
    xt_numbers_write(&numbers, self->info.dtype, (char *)copy->info.data + done * size, count);
  }
  return xt_plain_return(status, &copy, out);
}

xt_status xt_plain_op__conj(xt_plain_call *call, xt_value *out) { return mapped(call, false, out); }
xt_status xt_plain_op__neg_view(xt_plain_call *call, xt_value *out) { return mapped(call, true, out); }
xt_status xt_plain_op_resolve_conj(xt_plain_call *call, xt_value *out) { return xt_plain_op_alias(call, out); }
xt_status xt_plain_op_resolve_neg(xt_plain_call *call, xt_value *out) { return xt_plain_op_alias(call, out); }

/* A copy that is walked backwards along some dimensions. */
xt_status xt_plain_op_flip(xt_plain_call *call, xt_value *out) {
  int64_t dims[XT_MAX_DIMS], strides[XT_MAX_DIMS];
  int count;
  xt_tensor *self = xt_plain_tensor_arg(call, 0), *result = NULL;
  xt_plain_ints_arg(call, 1, dims, &count);
  if (call->status == XT_STATUS_ok) call->status = xt_plain_check_strided(self, call->error);
  if (call->status != XT_STATUS_ok) return call->status;
  xt_plain_shape shape = xt_plain_shape_of(self);
  xt_tensor_info from = self->info;
  memcpy(strides, shape.strides, sizeof strides);
  from.strides = strides;
  for (int i = 0; i < count; i++) {
    int64_t d = dims[i] < 0 ? dims[i] + shape.ndim : dims[i];
    if (d < 0 || d >= shape.ndim || strides[d] < 0)
      return xt_plain_invalid(call, 1, "has a wrong or repeated dimension");
    if (!from.numel) continue;
    from.data = (char *)from.data + (shape.sizes[d] - 1) * strides[d] * (int64_t)xt_dtype_get(from.dtype)->size;
    strides[d] = -strides[d];
  }
  xt_status status = xt_plain_empty(&shape, &result, call->error);
  if (status == XT_STATUS_ok) xt_plain_copy(&result->info, &from);
  return xt_plain_return(status, &result, out);
}

/* ---- Writing ---- */

/* Registers a write to the tensor. The caller removes the node. */
static xt_status begin_write(xt_plain_call *call, const xt_tensor *tensor, xt_frozen *node) {
  if (call->status != XT_STATUS_ok) return call->status;
  if (xt_frozen_write(node, tensor->info.data, tensor->info.span, false)) return XT_STATUS_ok;
  return xt_error_set(call->error, XT_STATUS_frozen,
                      "aten::%s would write to `self`, whose memory is read-only: an Erlang binary shares it, or a "
                      "sparse or quantized tensor depends on it; use ExTorch.Tensor.clone/1 first",
                      call->name);
}

/* A view of the source with the shape of the target, whose leading dimensions it may lack. */
static xt_status broadcast(xt_plain_call *call, const xt_tensor *source, const xt_tensor *target, xt_tensor **out) {
  xt_plain_shape shape = xt_plain_shape_of(source), wanted = xt_plain_shape_of(target);
  int added = wanted.ndim - shape.ndim;
  for (int d = 0; d < wanted.ndim; d++) {
    bool given = d >= added && shape.sizes[d - added] != 1;
    if (added < 0 || (given && shape.sizes[d - added] != wanted.sizes[d]))
      return xt_plain_invalid(call, 1, "does not have the shape of `self`");
    wanted.strides[d] = given ? shape.strides[d - added] : 0;
  }
  wanted.dtype = shape.dtype;
  wanted.offset = shape.offset;
  return xt_plain_view(source, &wanted, out, call->error);
}

/* The source as memory that does not overlap with the target, in its dtype. */
static xt_status source_for(xt_plain_call *call, const xt_tensor *source, const xt_tensor *target, xt_tensor **out) {
  if (source->info.dtype != target->info.dtype) return xt_plain_convert(source, target->info.dtype, out, call->error);
  if (source->info.storage && source->info.storage == target->info.storage)
    return xt_plain_clone(source, out, call->error);
  xt_plain_shape shape = xt_plain_shape_of(source);
  return xt_plain_view(source, &shape, out, call->error);
}

xt_status xt_plain_op_copy_(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_tensor_arg(call, 0), *other = xt_plain_tensor_arg(call, 1), *source = NULL, *view = NULL;
  xt_plain_bool_arg(call, 2, false);
  if (call->status == XT_STATUS_ok) call->status = xt_plain_check_strided(other, call->error);
  if (call->status != XT_STATUS_ok) return call->status;
  if (self->info.device.type == XT_DEVICE_META) return alias(call, self, out);
  xt_frozen node = {NULL};
  xt_status status = source_for(call, other, self, &source);
  if (status == XT_STATUS_ok) status = broadcast(call, source, self, &view);
  if (status == XT_STATUS_ok) status = begin_write(call, self, &node);
  if (status == XT_STATUS_ok) xt_plain_copy(&self->info, &view->info);
  xt_frozen_remove(&node);
  if (view) xt_plain_drop(view);
  if (source) xt_plain_drop(source);
  return status == XT_STATUS_ok ? alias(call, self, out) : status;
}

void xt_plain_fill(const xt_tensor *tensor, const xt_plain_scalar *scalar) {
  const xt_tensor_info *info = &tensor->info;
  bool integer = scalar->dtype == XT_int64 || scalar->dtype == XT_bool;
  _Alignas(16) char element[16];
  char bytes[16] = {0};
  int64_t strides[XT_MAX_DIMS] = {0};
  xt_tensor_info from = *info;
  if (scalar->dtype == XT_bool) bytes[0] = (char)scalar->integer;
  else memcpy(bytes, integer ? (const void *)&scalar->integer : (const void *)scalar->parts, integer ? 8 : 16);
  xt_convert(scalar->dtype, bytes, info->dtype, element, 1);
  from.data = element;
  from.strides = strides;
  xt_plain_copy(info, &from);
}

static xt_status check_number(xt_plain_call *call, int parameter, xt_dtype dtype) {
  if (call->status != XT_STATUS_ok || xt_convert_supported(dtype)) return call->status;
  return xt_plain_invalid(call, parameter, "cannot be written to elements of this dtype");
}

static xt_status fill(xt_plain_call *call, const xt_plain_scalar *scalar, xt_value *out) {
  xt_tensor *self = xt_plain_tensor_arg(call, 0);
  if (call->status != XT_STATUS_ok) return call->status;
  if (self->info.device.type == XT_DEVICE_META) return alias(call, self, out);
  xt_frozen node = {NULL};
  xt_status status = check_number(call, 0, self->info.dtype);
  if (status == XT_STATUS_ok) status = begin_write(call, self, &node);
  if (status == XT_STATUS_ok) xt_plain_fill(self, scalar);
  xt_frozen_remove(&node);
  return status == XT_STATUS_ok ? alias(call, self, out) : status;
}

xt_status xt_plain_op_fill_(xt_plain_call *call, xt_value *out) {
  xt_plain_scalar scalar = xt_plain_scalar_arg(call, 1, 0);
  return fill(call, &scalar, out);
}

xt_status xt_plain_op_zero_(xt_plain_call *call, xt_value *out) {
  return fill(call, &(xt_plain_scalar){.dtype = XT_int64}, out);
}

/* ---- Joining ---- */

static xt_status check_same(xt_plain_call *call, const xt_tensor *a, const xt_tensor *b, int except) {
  bool same = a->info.dtype == b->info.dtype && a->info.ndim == b->info.ndim;
  for (int d = 0; same && d < a->info.ndim; d++) same = d == except || a->info.sizes[d] == b->info.sizes[d];
  return same ? XT_STATUS_ok : xt_plain_invalid(call, 0, "has tensors whose dtypes or shapes do not fit together");
}

/* As in torch, an empty tensor of one dimension fits to everything. */
static bool is_nothing(const xt_tensor *tensor) { return tensor->info.ndim == 1 && !tensor->info.sizes[0]; }

xt_status xt_plain_op_cat(xt_plain_call *call, xt_value *out) {
  size_t count;
  const xt_value *items = xt_plain_tensors_arg(call, 0, &count);
  if (call->status != XT_STATUS_ok) return call->status;
  const xt_tensor *first = items[0].tensor;
  for (size_t i = 1; i < count && is_nothing(first); i++) first = items[i].tensor;
  xt_plain_shape shape = xt_plain_shape_of(first);
  int dim = xt_plain_dim_arg(call, 1, 0, shape.ndim);
  if (call->status != XT_STATUS_ok) return call->status;
  shape.sizes[dim] = 0;
  for (size_t i = 0; i < count; i++) {
    if (is_nothing(items[i].tensor)) continue;
    if (check_same(call, first, items[i].tensor, dim) != XT_STATUS_ok) return call->status;
    if (__builtin_add_overflow(shape.sizes[dim], items[i].tensor->info.sizes[dim], &shape.sizes[dim]))
      return xt_plain_invalid(call, 0, "has too many elements");
  }
  xt_tensor *result = NULL;
  xt_status status = xt_plain_empty(&shape, &result, call->error);
  if (status != XT_STATUS_ok) return status;
  xt_tensor_info part = result->info;
  for (size_t i = 0; i < count && result->info.numel; i++) {
    if (is_nothing(items[i].tensor)) continue;
    const xt_tensor_info *from = &items[i].tensor->info;
    part.sizes = from->sizes;
    part.numel = from->numel;
    xt_plain_copy(&part, from);
    part.data = (char *)part.data + from->sizes[dim] * part.strides[dim] * (int64_t)xt_dtype_get(part.dtype)->size;
  }
  return xt_plain_return(status, &result, out);
}

xt_status xt_plain_op_stack(xt_plain_call *call, xt_value *out) {
  size_t count;
  const xt_value *items = xt_plain_tensors_arg(call, 0, &count);
  if (call->status != XT_STATUS_ok) return call->status;
  xt_plain_shape shape = xt_plain_shape_of(items[0].tensor), inner;
  int dim = xt_plain_dim_arg(call, 1, 0, shape.ndim + 1);
  if (shape.ndim == XT_MAX_DIMS) xt_plain_invalid(call, 0, "has tensors of 64 dimensions, the most there can be");
  if (call->status != XT_STATUS_ok) return call->status;
  for (int d = shape.ndim++; d > dim; d--) shape.sizes[d] = shape.sizes[d - 1];
  shape.sizes[dim] = (int64_t)count;
  for (size_t i = 1; i < count; i++)
    if (check_same(call, items[0].tensor, items[i].tensor, -1) != XT_STATUS_ok) return call->status;
  xt_tensor *result = NULL;
  xt_status status = xt_plain_empty(&shape, &result, call->error);
  if (status != XT_STATUS_ok || !result->info.numel) return xt_plain_return(status, &result, out);
  inner = shape;
  for (int d = dim; d + 1 < shape.ndim; d++) inner.strides[d] = shape.strides[d + 1];
  xt_tensor_info part = result->info;
  part.ndim = shape.ndim - 1;
  part.strides = inner.strides;
  for (size_t i = 0; i < count; i++) {
    part.sizes = items[i].tensor->info.sizes;
    part.numel = items[i].tensor->info.numel;
    xt_plain_copy(&part, &items[i].tensor->info);
    part.data = (char *)part.data + shape.strides[dim] * (int64_t)xt_dtype_get(part.dtype)->size;
  }
  return xt_plain_return(status, &result, out);
}

/* ---- Single values ---- */

xt_status xt_plain_op_equal(xt_plain_call *call, xt_value *out) {
  xt_tensor *a = xt_plain_any_arg(call, 0), *b = xt_plain_any_arg(call, 1);
  if (call->status != XT_STATUS_ok) return call->status;
  out->kind = XT_VALUE_BOOL;
  return xt_plain_tensor_equal(a, b, &out->boolean, call->error);
}

xt_status xt_plain_op_item(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_tensor_arg(call, 0);
  if (call->status == XT_STATUS_ok) call->status = xt_plain_check_strided(self, call->error);
  if (call->status != XT_STATUS_ok) return call->status;
  if (self->info.numel != 1) return xt_plain_invalid(call, 0, "does not have exactly one element");
  xt_element element = xt_element_read(self->info.dtype, self->info.data);
  switch (element.kind) {
  case XT_ELEMENT_FLOAT: *out = (xt_value){.kind = XT_VALUE_FLOAT, .number = element.re}; break;
  case XT_ELEMENT_BOOL: *out = (xt_value){.kind = XT_VALUE_BOOL, .boolean = element.i}; break;
  case XT_ELEMENT_COMPLEX: *out = (xt_value){.kind = XT_VALUE_COMPLEX, .complex = {element.re, element.im}}; break;
  default: *out = (xt_value){.kind = XT_VALUE_INT, .integer = element.i};
  }
  return XT_STATUS_ok;
}
