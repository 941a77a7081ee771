/* Operators that return views: other shapes, strides and offsets of the same storage. */
#include <string.h>

#include "plain/arguments.h"

static xt_status make_view(xt_plain_call *call, const xt_tensor *tensor, const xt_plain_shape *shape, xt_value *out) {
  xt_tensor *view = NULL;
  if (call->status != XT_STATUS_ok) return call->status;
  return xt_plain_return(xt_plain_view(tensor, shape, &view, call->error), &view, out);
}

/* Gets the tensor and its shape. Returns NULL if there is an error. */
static xt_tensor *self_arg(xt_plain_call *call, xt_plain_shape *shape) {
  xt_tensor *tensor = xt_plain_tensor_arg(call, 0);
  if (call->status != XT_STATUS_ok) return NULL;
  *shape = xt_plain_shape_of(tensor);
  return tensor;
}

/* Multiplies a size and a stride. The product can overflow only if the tensor has no elements, so that it has no
 * effect. */
static int64_t steps(int64_t size, int64_t stride) {
  int64_t product;
  return __builtin_mul_overflow(size, stride, &product) ? 1 : product;
}

/* Moves the beginning of the view by `count` steps of a dimension, unless it has no elements. */
static void skip(xt_plain_shape *shape, int dim, int64_t count) {
  for (int d = 0; d < shape->ndim; d++)
    if (!shape->sizes[d]) return;
  shape->offset += (size_t)(count * shape->strides[dim]) * xt_dtype_get(shape->dtype)->size;
}

static void remove_dim(xt_plain_shape *shape, int dim) {
  for (int d = dim; d + 1 < shape->ndim; d++) {
    shape->sizes[d] = shape->sizes[d + 1];
    shape->strides[d] = shape->strides[d + 1];
  }
  shape->ndim--;
}

static void insert_dim(xt_plain_shape *shape, int dim, int64_t size, int64_t stride) {
  for (int d = shape->ndim++; d > dim; d--) {
    shape->sizes[d] = shape->sizes[d - 1];
    shape->strides[d] = shape->strides[d - 1];
  }
  shape->sizes[dim] = size;
  shape->strides[dim] = stride;
}

/* A second handle, also of sparse and quantized tensors. */
xt_status xt_plain_op_alias(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_any_arg(call, 0), *same = NULL;
  if (call->status != XT_STATUS_ok) return call->status;
  return xt_plain_return(xt_plain_tensor_set_requires_grad(self, false, &same, call->error), &same, out);
}

xt_status xt_plain_op_detach(xt_plain_call *call, xt_value *out) { return xt_plain_op_alias(call, out); }

/* ---- Other shapes ---- */

/* Replaces a size of -1 and compares the number of elements. */
static xt_status resolve_sizes(xt_plain_call *call, int64_t numel, int64_t *sizes, int count) {
  int64_t known = 1;
  int unknown = -1;
  for (int d = 0; d < count; d++) {
    if (sizes[d] == -1 && unknown < 0) unknown = d;
    else if (sizes[d] < 0) return xt_plain_invalid(call, 1, "has a negative size, or -1 twice");
    else if (__builtin_mul_overflow(known, sizes[d], &known)) return xt_plain_invalid(call, 1, "is too large");
  }
  if (unknown >= 0 && (!known || numel % known))
    return xt_plain_invalid(call, 1, "does not divide the number of elements");
  if (unknown >= 0) sizes[unknown] = numel / known;
  else if (known != numel) return xt_plain_invalid(call, 1, "has another number of elements than the tensor");
  return XT_STATUS_ok;
}

/* Finds strides with which the new sizes walk the same elements in the same order. The dimensions of the tensor form
 * groups, each walked with one step; the new dimensions must not cross the border of a group. */
static bool restride(const xt_tensor_info *info, const int64_t *sizes, int count, int64_t *strides) {
  int d = count - 1, old = info->ndim - 1;
  while (old >= 0) {
    if (info->sizes[old] == 1) { /* its stride has no meaning */
      old--;
      continue;
    }
    int64_t base = info->strides[old], group = info->sizes[old--], seen = 1;
    for (; old >= 0 && (info->sizes[old] == 1 || info->strides[old] == steps(group, base)); old--)
      group *= info->sizes[old];
    for (; d >= 0 && seen < group; d--) {
      strides[d] = steps(seen, base);
      seen *= sizes[d];
    }
    if (seen != group) return false;
  }
  for (; d >= 0 && sizes[d] == 1; d--) strides[d] = 1;
  return d < 0;
}

static xt_status reshaped(xt_plain_call *call, xt_tensor *self, const int64_t *sizes, int count, bool may_copy,
                          xt_value *out) {
  xt_plain_shape shape = xt_plain_shape_of(self);
  xt_tensor *copy = NULL;
  shape.ndim = count;
  memcpy(shape.sizes, sizes, (size_t)count * sizeof *sizes);
  if (self->info.contiguous) {
    xt_plain_shape_contiguous(&shape);
    return make_view(call, self, &shape, out);
  }
  if (restride(&self->info, sizes, count, shape.strides)) return make_view(call, self, &shape, out);
  if (!may_copy)
    return xt_plain_invalid(call, 1, "needs a copy, because the strides of the tensor do not fit; use reshape");
  xt_status status = xt_plain_contiguous(self, &copy, call->error);
  if (status != XT_STATUS_ok) return status;
  shape.offset = 0;
  xt_plain_shape_contiguous(&shape);
  status = make_view(call, copy, &shape, out);
  xt_plain_drop(copy);
  return status;
}

static xt_status view_or_copy(xt_plain_call *call, bool may_copy, xt_value *out) {
  int64_t sizes[XT_MAX_DIMS];
  int count;
  xt_tensor *self = xt_plain_tensor_arg(call, 0);
  xt_plain_ints_arg(call, 1, sizes, &count);
  if (call->status != XT_STATUS_ok) return call->status;
  xt_status status = resolve_sizes(call, self->info.numel, sizes, count);
  return status == XT_STATUS_ok ? reshaped(call, self, sizes, count, may_copy, out) : status;
}

/* The elements as another dtype. The last dimension gets larger or smaller if their sizes differ. */
static xt_status view_dtype(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape;
  xt_tensor *self = self_arg(call, &shape);
  if (!self) return call->status;
  int64_t from = (int64_t)xt_dtype_get(shape.dtype)->size;
  shape.dtype = xt_plain_dtype_arg(call, 1, shape.dtype);
  int64_t to = (int64_t)xt_dtype_get(shape.dtype)->size;
  if (xt_dtype_get(shape.dtype)->kind == XT_KIND_QUANT) return xt_plain_invalid(call, 1, "is quantized");
  if (!xt_dtype_aligned(self->info.data, shape.dtype)) return xt_plain_invalid(call, 1, "has another alignment");
  if (from == to) return make_view(call, self, &shape, out);
  if (!self->info.contiguous || !shape.ndim || shape.sizes[shape.ndim - 1] * from % to)
    return xt_plain_invalid(call, 1, "has elements of another size that do not fit into the last dimension");
  shape.sizes[shape.ndim - 1] = shape.sizes[shape.ndim - 1] * from / to;
  xt_plain_shape_contiguous(&shape);
  return make_view(call, self, &shape, out);
}

xt_status xt_plain_op_view(xt_plain_call *call, xt_value *out) {
  return xt_plain_is_dtype(call, 1) ? view_dtype(call, out) : view_or_copy(call, false, out);
}

xt_status xt_plain_op_reshape(xt_plain_call *call, xt_value *out) { return view_or_copy(call, true, out); }

xt_status xt_plain_op_flatten(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape;
  xt_tensor *self = self_arg(call, &shape);
  if (!self) return call->status;
  int64_t one = 1;
  if (!shape.ndim) return reshaped(call, self, &one, 1, true, out);
  int first = xt_plain_dim_arg(call, 1, 0, shape.ndim), last = xt_plain_dim_arg(call, 2, -1, shape.ndim);
  if (first > last) xt_plain_invalid(call, 1, "is after end_dim");
  if (call->status != XT_STATUS_ok) return call->status;
  for (int d = first + 1; d <= last; d++) {
    if (__builtin_mul_overflow(shape.sizes[first], shape.sizes[first + 1], &shape.sizes[first]))
      return xt_plain_invalid(call, 0, "has too many elements");
    remove_dim(&shape, first + 1);
  }
  return reshaped(call, self, shape.sizes, shape.ndim, true, out);
}

/* ---- Order of dimensions ---- */

xt_status xt_plain_op_permute(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape, order;
  int64_t dims[XT_MAX_DIMS];
  bool used[XT_MAX_DIMS] = {false};
  int count;
  xt_tensor *self = self_arg(call, &shape);
  xt_plain_ints_arg(call, 1, dims, &count);
  if (call->status != XT_STATUS_ok) return call->status;
  if (count != shape.ndim) return xt_plain_invalid(call, 1, "does not have as many items as the tensor dimensions");
  order = shape;
  for (int d = 0; d < count; d++) {
    int64_t from = dims[d] < 0 ? dims[d] + count : dims[d];
    if (from < 0 || from >= count || used[from]) return xt_plain_invalid(call, 1, "is not a permutation");
    used[from] = true;
    order.sizes[d] = shape.sizes[from];
    order.strides[d] = shape.strides[from];
  }
  return make_view(call, self, &order, out);
}

static void swap_dims(xt_plain_shape *shape, int a, int b) {
  xt_plain_shape old = *shape;
  shape->sizes[a] = old.sizes[b], shape->strides[a] = old.strides[b];
  shape->sizes[b] = old.sizes[a], shape->strides[b] = old.strides[a];
}

xt_status xt_plain_op_transpose(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape;
  xt_tensor *self = self_arg(call, &shape);
  if (!self) return call->status;
  int range = shape.ndim ? shape.ndim : 1; /* a number has the dimensions 0 and -1 here */
  int a = xt_plain_dim_arg(call, 1, 0, range), b = xt_plain_dim_arg(call, 2, 1, range);
  if (call->status == XT_STATUS_ok && shape.ndim) swap_dims(&shape, a, b);
  return make_view(call, self, &shape, out);
}

xt_status xt_plain_op_t(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape;
  xt_tensor *self = self_arg(call, &shape);
  if (!self) return call->status;
  if (shape.ndim > 2) return xt_plain_invalid(call, 0, "has more than two dimensions");
  if (shape.ndim == 2) swap_dims(&shape, 0, 1);
  return make_view(call, self, &shape, out);
}

/* ---- Dimensions of size 1, and repeated ones ---- */

xt_status xt_plain_op_squeeze(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape;
  xt_tensor *self = self_arg(call, &shape);
  if (!self) return call->status;
  if (xt_plain_has(call, 1)) {
    int dim = xt_plain_dim_arg(call, 1, 0, shape.ndim ? shape.ndim : 1);
    if (call->status == XT_STATUS_ok && shape.ndim && shape.sizes[dim] == 1) remove_dim(&shape, dim);
  } else {
    for (int d = shape.ndim - 1; d >= 0; d--)
      if (shape.sizes[d] == 1) remove_dim(&shape, d);
  }
  return make_view(call, self, &shape, out);
}

xt_status xt_plain_op_unsqueeze(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape;
  xt_tensor *self = self_arg(call, &shape);
  if (!self) return call->status;
  int dim = xt_plain_dim_arg(call, 1, 0, shape.ndim + 1);
  if (shape.ndim == XT_MAX_DIMS) return xt_plain_invalid(call, 0, "has 64 dimensions, the most there can be");
  if (call->status != XT_STATUS_ok) return call->status;
  insert_dim(&shape, dim, 1, dim < shape.ndim ? steps(shape.sizes[dim], shape.strides[dim]) : 1);
  return make_view(call, self, &shape, out);
}

xt_status xt_plain_op_expand(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape;
  int64_t sizes[XT_MAX_DIMS];
  int count;
  xt_tensor *self = self_arg(call, &shape);
  xt_plain_ints_arg(call, 1, sizes, &count);
  if (call->status != XT_STATUS_ok) return call->status;
  if (count < shape.ndim) return xt_plain_invalid(call, 1, "has fewer items than the tensor dimensions");
  int added = count - shape.ndim;
  for (int d = 0; d < added; d++) insert_dim(&shape, 0, 1, 0);
  for (int d = 0; d < count; d++) {
    bool keeps = sizes[d] == shape.sizes[d] || (sizes[d] == -1 && d >= added);
    if (!keeps && (shape.sizes[d] != 1 || sizes[d] < 0))
      return xt_plain_invalid(call, 1, "does not match the sizes of the tensor, which are not 1");
    if (!keeps) shape.sizes[d] = sizes[d], shape.strides[d] = 0;
  }
  return make_view(call, self, &shape, out);
}

/* ---- Parts ---- */

xt_status xt_plain_op_select(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape;
  xt_tensor *self = self_arg(call, &shape);
  if (!self) return call->status;
  int dim = xt_plain_dim_arg(call, 1, 0, shape.ndim);
  int64_t index = xt_plain_int_arg(call, 2, 0);
  if (call->status != XT_STATUS_ok) return call->status;
  if (index < 0) index += shape.sizes[dim];
  if (index < 0 || index >= shape.sizes[dim]) return xt_plain_invalid(call, 2, "is outside the dimension");
  skip(&shape, dim, index);
  remove_dim(&shape, dim);
  return make_view(call, self, &shape, out);
}

static int64_t clamp(int64_t index, int64_t low, int64_t high) {
  return index < low ? low : index > high ? high : index;
}

xt_status xt_plain_op_slice(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape;
  xt_tensor *self = self_arg(call, &shape);
  if (!self) return call->status;
  int dim = xt_plain_dim_arg(call, 1, 0, shape.ndim);
  int64_t start = xt_plain_int_arg(call, 2, 0), end = xt_plain_int_arg(call, 3, INT64_MAX);
  int64_t step = xt_plain_int_arg(call, 4, 1);
  if (step < 1) xt_plain_invalid(call, 4, "is not positive");
  if (call->status != XT_STATUS_ok) return call->status;
  int64_t size = shape.sizes[dim];
  start = clamp(start < 0 ? start + size : start, 0, size);
  end = clamp(end < 0 ? end + size : end, start, size);
  skip(&shape, dim, start);
  shape.sizes[dim] = end > start ? (end - start - 1) / step + 1 : 0;
  shape.strides[dim] = steps(shape.strides[dim], step);
  return make_view(call, self, &shape, out);
}

static xt_status narrow(xt_plain_call *call, xt_tensor *self, int dim, int64_t start, int64_t length, xt_value *out) {
  xt_plain_shape shape = xt_plain_shape_of(self);
  skip(&shape, dim, start);
  shape.sizes[dim] = length;
  return make_view(call, self, &shape, out);
}

xt_status xt_plain_op_narrow(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_tensor_arg(call, 0);
  if (call->status != XT_STATUS_ok) return call->status;
  int dim = xt_plain_dim_arg(call, 1, 0, self->info.ndim);
  int64_t start = xt_plain_int_arg(call, 2, 0), length = xt_plain_int_arg(call, 3, 0);
  if (call->status != XT_STATUS_ok) return call->status;
  int64_t size = self->info.sizes[dim];
  if (start < 0) start += size;
  if (start < 0 || start > size) return xt_plain_invalid(call, 2, "is outside the dimension");
  if (length < 0 || length > size - start) return xt_plain_invalid(call, 3, "extends past the end of the dimension");
  return narrow(call, self, dim, start, length, out);
}

/* Parts of `step` along a dimension; the last one may be shorter. A dimension of size 0 is one part. */
static xt_status split(xt_plain_call *call, xt_tensor *self, int dim, int64_t step, xt_value *out) {
  int64_t size = self->info.sizes[dim], count = size ? (size - 1) / step + 1 : 1;
  xt_value *items = xt_arena_alloc(call->arena, (size_t)count, sizeof *items);
  xt_status status = items ? XT_STATUS_ok : xt_error_set(call->error, XT_STATUS_no_memory, "out of memory");
  int64_t made = 0;
  for (; status == XT_STATUS_ok && made < count; made++) {
    int64_t start = made * step, rest = size - start;
    status = narrow(call, self, dim, start, rest < step ? rest : step, &items[made]);
  }
  *out = (xt_value){.kind = XT_VALUE_LIST, .list = {items, (size_t)count}};
  if (status != XT_STATUS_ok)
    for (int64_t i = 0; i + 1 < made; i++) xt_plain_drop(items[i].tensor);
  return status;
}

xt_status xt_plain_op_split(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_tensor_arg(call, 0);
  int64_t step = xt_plain_int_arg(call, 1, 0);
  if (call->status != XT_STATUS_ok) return call->status;
  int dim = xt_plain_dim_arg(call, 2, 0, self->info.ndim);
  if (step < 1) xt_plain_invalid(call, 1, "is not positive");
  return call->status == XT_STATUS_ok ? split(call, self, dim, step, out) : call->status;
}

xt_status xt_plain_op_chunk(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_tensor_arg(call, 0);
  int64_t chunks = xt_plain_int_arg(call, 1, 0);
  if (call->status != XT_STATUS_ok) return call->status;
  int dim = xt_plain_dim_arg(call, 2, 0, self->info.ndim);
  if (chunks < 1) xt_plain_invalid(call, 1, "is not positive");
  if (call->status != XT_STATUS_ok) return call->status;
  int64_t size = self->info.sizes[dim], step = size ? (size - 1) / chunks + 1 : 1;
  return split(call, self, dim, step, out);
}

xt_status xt_plain_op_as_strided(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape;
  int sizes, strides;
  int64_t item;
  xt_tensor *self = self_arg(call, &shape);
  if (!self) return call->status;
  item = (int64_t)xt_dtype_get(shape.dtype)->size;
  int64_t offset = xt_plain_int_arg(call, 3, (int64_t)shape.offset / item);
  xt_plain_ints_arg(call, 1, shape.sizes, &sizes);
  xt_plain_ints_arg(call, 2, shape.strides, &strides);
  if (call->status != XT_STATUS_ok) return call->status;
  if (sizes != strides) return xt_plain_invalid(call, 2, "does not have as many items as `size`");
  if (offset < 0 || __builtin_mul_overflow(offset, item, &offset)) return xt_plain_invalid(call, 3, "is not an offset");
  shape.ndim = sizes;
  shape.offset = (size_t)offset;
  return make_view(call, self, &shape, out);
}
