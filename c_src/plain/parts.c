/* Sparse and quantized tensors: held as their parts, so that they can be loaded, taken apart and saved. */
#include <stdlib.h>
#include <string.h>

#include "core/base/convert.h"
#include "core/base/element.h"
#include "core/base/layout.h"
#include "plain/arguments.h"

static void free_parts(xt_plain_parts *parts) {
  for (int i = 0; i < 2; i++) xt_frozen_remove(&parts->frozen[i]);
  for (int i = 0; i < parts->count; i++) xt_plain_drop(parts->list[i]);
  free(parts);
}

/* Keeps the tensors, and freezes the first `frozen` of them. */
static xt_status new_parts(xt_tensor *const *list, int count, int frozen, xt_plain_parts **out, xt_error *error) {
  xt_plain_parts *parts = calloc(1, sizeof *parts);
  if (!parts) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while creating a tensor");
  for (; parts->count < count; parts->count++) parts->list[parts->count] = xt_tensor_keep(list[parts->count]);
  for (int i = 0; i < frozen; i++) {
    const xt_tensor_info *info = &list[i]->info;
    xt_frozen_add(&parts->frozen[i], info->data, info->span);
    if (xt_frozen_writers(info->data, info->span) == XT_WRITERS_NONE) continue;
    free_parts(parts);
    return xt_error_set(error, XT_STATUS_busy,
                        "another process is writing to the indices or scales of the tensor; give each its own copy");
  }
  *out = parts;
  return XT_STATUS_ok;
}

/* ---- Checks of sparse tensors ----
 *
 * COO: indices of shape [sparse dimensions, n], values of shape [n, dense dimensions…].
 * Compressed: for each batch, `compressed` has one number more than there are lines (rows, or columns for CSC and BSC),
 * from 0 to n; `plain` has n indices across the lines; values has n numbers or blocks. */

static xt_status fail_indices(xt_error *error) {
  return xt_error_set(error, XT_STATUS_bad_argument, "the indices of the sparse tensor do not match its shape");
}

/* Reads an integer of a contiguous tensor. */
static int64_t index_at(const xt_tensor_info *info, int64_t i) {
  size_t size = xt_dtype_get(info->dtype)->size;
  return xt_element_read(info->dtype, (char *)info->data + (size_t)i * size).i;
}

static bool is_index(const xt_tensor *tensor) {
  return tensor->info.plain && (tensor->info.dtype == XT_int64 || tensor->info.dtype == XT_int32);
}

static bool in_range(const xt_tensor_info *info, int64_t from, int64_t count, int64_t size) {
  for (int64_t i = from; i < from + count; i++)
    if (index_at(info, i) < 0 || index_at(info, i) >= size) return false;
  return true;
}

static bool coo_fits(const xt_tensor_info *indices, const xt_tensor_info *values, const int64_t *sizes, int ndim) {
  if (indices->ndim != 2 || values->ndim < 1 || values->sizes[0] != indices->sizes[1]) return false;
  int64_t sparse = indices->sizes[0], count = indices->sizes[1];
  if (sparse + values->ndim - 1 != ndim) return false;
  for (int d = 1; d < values->ndim; d++)
    if (values->sizes[d] != sizes[sparse + d - 1]) return false;
  for (int64_t d = 0; d < sparse; d++)
    if (!in_range(indices, d * count, count, sizes[d])) return false;
  return true;
}

static xt_status check_coo(xt_tensor *const *parts, const int64_t *sizes, int ndim, xt_error *error) {
  xt_tensor *indices;
  if (!is_index(parts[0]) || !parts[1]->info.plain) return fail_indices(error);
  xt_status status = xt_plain_contiguous(parts[0], &indices, error);
  if (status != XT_STATUS_ok) return status;
  if (!coo_fits(&indices->info, &parts[1]->info, sizes, ndim)) status = fail_indices(error);
  xt_plain_drop(indices);
  return status;
}

/* The numbers of lines, and of positions across them, or -1. */
static bool find_lines(const xt_tensor_info *values, const int64_t *sizes, int batch, int layout, int64_t lines[2]) {
  bool blocks = layout == XT_LAYOUT_BSR || layout == XT_LAYOUT_BSC;
  bool columns = layout == XT_LAYOUT_CSC || layout == XT_LAYOUT_BSC;
  if (values->ndim < batch + (blocks ? 3 : 1)) return false;
  for (int i = 0; i < 2; i++) {
    int64_t block = blocks ? values->sizes[batch + 1 + i] : 1;
    if (!block || sizes[batch + i] % block) return false;
    lines[columns ? 1 - i : i] = sizes[batch + i] / block;
  }
  return true;
}

/* One batch: the lines begin at 0, end at `count`, and never go back. */
static bool lines_fit(const xt_tensor_info *compressed, int64_t from, int64_t lines, int64_t count) {
  int64_t last = index_at(compressed, from);
  if (last != 0 || index_at(compressed, from + lines) != count) return false;
  for (int64_t i = 1; i <= lines; i++) {
    int64_t next = index_at(compressed, from + i);
    if (next < last) return false;
    last = next;
  }
  return true;
}

static bool compressed_fits(const xt_tensor_info *compressed, const xt_tensor_info *plain, const xt_tensor_info *values,
                            const int64_t *sizes, int ndim, int layout) {
  int batch = compressed->ndim - 1;
  int64_t lines[2], batches = 1;
  if (batch < 0 || plain->ndim != batch + 1 || ndim < batch + 2 || values->ndim < batch + 1) return false;
  for (int d = 0; d < batch; d++) {
    if (compressed->sizes[d] != sizes[d] || plain->sizes[d] != sizes[d] || values->sizes[d] != sizes[d]) return false;
    batches *= sizes[d];
  }
  int64_t count = plain->sizes[batch];
  if (values->sizes[batch] != count || !find_lines(values, sizes, batch, layout, lines)) return false;
  if (compressed->sizes[batch] != lines[0] + 1) return false;
  for (int64_t b = 0; b < batches; b++)
    if (!lines_fit(compressed, b * (lines[0] + 1), lines[0], count)) return false;
  return in_range(plain, 0, plain->numel, lines[1]);
}

static xt_status check_compressed(xt_tensor *const *parts, const int64_t *sizes, int ndim, int layout,
                                  xt_error *error) {
  xt_tensor *compressed = NULL, *plain = NULL;
  if (!is_index(parts[0]) || !is_index(parts[1]) || !parts[2]->info.plain) return fail_indices(error);
  xt_status status = xt_plain_contiguous(parts[0], &compressed, error);
  if (status == XT_STATUS_ok) status = xt_plain_contiguous(parts[1], &plain, error);
  if (status == XT_STATUS_ok && !compressed_fits(&compressed->info, &plain->info, &parts[2]->info, sizes, ndim, layout))
    status = fail_indices(error);
  if (compressed) xt_plain_drop(compressed);
  if (plain) xt_plain_drop(plain);
  return status;
}

/* ---- Sparse tensors ---- */

/* Gets the parts, which come first, and the size after them. */
static xt_status sparse_args(xt_plain_call *call, int count, xt_tensor **parts, xt_plain_shape *shape) {
  for (int i = 0; i < count; i++) parts[i] = xt_plain_tensor_arg(call, i);
  xt_plain_ints_arg(call, count, shape->sizes, &shape->ndim);
  for (int d = 0; d < shape->ndim; d++)
    if (shape->sizes[d] < 0) xt_plain_invalid(call, count, "has a negative size");
  return call->status;
}

static int layout_arg(xt_plain_call *call, int parameter) {
  const xt_value *value = call->values[parameter];
  xt_layout layout = XT_LAYOUT_STRIDED;
  bool known = value && value->kind == XT_VALUE_NAME &&
               xt_layout_from_name(value->name.text, strlen(value->name.text), &layout) &&
               layout != XT_LAYOUT_STRIDED && layout != XT_LAYOUT_COO;
  if (!known) xt_plain_invalid(call, parameter, "is not a compressed layout such as :sparse_csr");
  return layout;
}

xt_status xt_plain_op__validate_sparse_coo_tensor_args(xt_plain_call *call, xt_value *out) {
  xt_tensor *parts[2];
  xt_plain_shape shape = {.ndim = 0};
  (void)out;
  if (sparse_args(call, 2, parts, &shape) != XT_STATUS_ok) return call->status;
  return check_coo(parts, shape.sizes, shape.ndim, call->error);
}

xt_status xt_plain_op__validate_sparse_compressed_tensor_args(xt_plain_call *call, xt_value *out) {
  xt_tensor *parts[3];
  xt_plain_shape shape = {.ndim = 0};
  int layout = layout_arg(call, 4);
  (void)out;
  if (sparse_args(call, 3, parts, &shape) != XT_STATUS_ok) return call->status;
  return check_compressed(parts, shape.sizes, shape.ndim, layout, call->error);
}

/* Freezes the indices, then checks them. */
static xt_status make_sparse(xt_plain_call *call, int count, xt_tensor *const *list, xt_plain_shape *shape, int layout,
                             xt_value *out) {
  xt_plain_parts *parts = NULL;
  xt_tensor *tensor = NULL;
  xt_status status = new_parts(list, count, count - 1, &parts, call->error);
  if (status != XT_STATUS_ok) return status;
  status = layout == XT_LAYOUT_COO ? check_coo(list, shape->sizes, shape->ndim, call->error)
                                   : check_compressed(list, shape->sizes, shape->ndim, layout, call->error);
  if (status != XT_STATUS_ok) {
    free_parts(parts);
    return status;
  }
  if (layout == XT_LAYOUT_COO) parts->coalesced = xt_plain_bool_arg(call, 7, false);
  shape->dtype = list[count - 1]->info.dtype;
  xt_plain_shape_contiguous(shape);
  return xt_plain_return(xt_plain_compose(NULL, shape, (uint8_t)layout, XT_SCHEME_NONE, parts, &tensor, call->error),
                         &tensor, out);
}

xt_status xt_plain_op_sparse_coo_tensor(xt_plain_call *call, xt_value *out) {
  xt_tensor *parts[2];
  xt_plain_shape shape = {.ndim = 0};
  if (sparse_args(call, 2, parts, &shape) != XT_STATUS_ok) return call->status;
  return make_sparse(call, 2, parts, &shape, XT_LAYOUT_COO, out);
}

xt_status xt_plain_op_sparse_compressed_tensor(xt_plain_call *call, xt_value *out) {
  xt_tensor *parts[3];
  xt_plain_shape shape = {.ndim = 0};
  int layout = layout_arg(call, 5);
  if (sparse_args(call, 3, parts, &shape) != XT_STATUS_ok) return call->status;
  return make_sparse(call, 3, parts, &shape, layout, out);
}

/* A second handle of a part. `layouts` has the bits of the layouts that have it. */
static xt_status part(xt_plain_call *call, unsigned layouts, int index, xt_value *out) {
  xt_tensor *self = xt_plain_any_arg(call, 0), *result = NULL;
  if (call->status != XT_STATUS_ok) return call->status;
  if (!(layouts >> self->info.layout & 1)) return xt_plain_invalid(call, 0, "does not have a layout with these parts");
  const xt_plain_parts *parts = xt_plain_of(self)->parts;
  xt_tensor *found = parts->list[index < 0 ? parts->count - 1 : index];
  return xt_plain_return(xt_plain_tensor_set_requires_grad(found, false, &result, call->error), &result, out);
}

enum {
  COO = 1 << XT_LAYOUT_COO,
  ROWS = 1 << XT_LAYOUT_CSR | 1 << XT_LAYOUT_BSR,
  COLUMNS = 1 << XT_LAYOUT_CSC | 1 << XT_LAYOUT_BSC
};

xt_status xt_plain_op__indices(xt_plain_call *call, xt_value *out) { return part(call, COO, 0, out); }
xt_status xt_plain_op__values(xt_plain_call *call, xt_value *out) { return part(call, COO, 1, out); }
xt_status xt_plain_op_indices(xt_plain_call *call, xt_value *out) { return part(call, COO, 0, out); }
xt_status xt_plain_op_crow_indices(xt_plain_call *call, xt_value *out) { return part(call, ROWS, 0, out); }
xt_status xt_plain_op_col_indices(xt_plain_call *call, xt_value *out) { return part(call, ROWS, 1, out); }
xt_status xt_plain_op_ccol_indices(xt_plain_call *call, xt_value *out) { return part(call, COLUMNS, 0, out); }
xt_status xt_plain_op_row_indices(xt_plain_call *call, xt_value *out) { return part(call, COLUMNS, 1, out); }
xt_status xt_plain_op_values(xt_plain_call *call, xt_value *out) { return part(call, COO | ROWS | COLUMNS, -1, out); }

xt_status xt_plain_op_is_coalesced(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_any_arg(call, 0);
  if (call->status != XT_STATUS_ok) return call->status;
  if (self->info.layout != XT_LAYOUT_COO) return xt_plain_invalid(call, 0, "is not a sparse_coo tensor");
  *out = (xt_value){.kind = XT_VALUE_BOOL, .boolean = xt_plain_of(self)->parts->coalesced};
  return XT_STATUS_ok;
}

/* ---- Quantized tensors ---- */

/* The quantized type of integers, or XT_DTYPE_COUNT. */
static xt_dtype quantized_dtype(xt_dtype dtype) {
  return dtype == XT_int8 ? XT_qint8 : dtype == XT_uint8 ? XT_quint8 : dtype == XT_int32 ? XT_qint32 : XT_DTYPE_COUNT;
}

/* Takes ownership of the parts. */
static xt_status make_quantized(xt_plain_call *call, const xt_tensor *integers, uint8_t scheme, xt_plain_parts *parts,
                                xt_value *out) {
  xt_plain_shape shape = xt_plain_shape_of(integers);
  xt_tensor *tensor = NULL;
  shape.dtype = quantized_dtype(shape.dtype);
  return xt_plain_return(xt_plain_compose(integers, &shape, XT_LAYOUT_STRIDED, scheme, parts, &tensor, call->error),
                         &tensor, out);
}

static xt_tensor *integers_arg(xt_plain_call *call) {
  xt_tensor *self = xt_plain_tensor_arg(call, 0);
  if (call->status != XT_STATUS_ok) return NULL;
  if (quantized_dtype(self->info.dtype) == XT_DTYPE_COUNT) xt_plain_invalid(call, 0, "is not int8, uint8 or int32");
  else call->status = xt_plain_check_strided(self, call->error);
  return self;
}

xt_status xt_plain_op__make_per_tensor_quantized_tensor(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = integers_arg(call);
  double scale = xt_plain_float_arg(call, 1, 1);
  int64_t zero_point = xt_plain_int_arg(call, 2, 0);
  xt_plain_parts *parts = NULL;
  if (call->status != XT_STATUS_ok) return call->status;
  xt_status status = new_parts(NULL, 0, 0, &parts, call->error);
  if (status != XT_STATUS_ok) return status;
  parts->scale = scale;
  parts->zero_point = zero_point;
  return make_quantized(call, self, XT_SCHEME_PER_TENSOR, parts, out);
}

xt_status xt_plain_op__make_per_channel_quantized_tensor(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = integers_arg(call), *list[] = {xt_plain_tensor_arg(call, 1), xt_plain_tensor_arg(call, 2)};
  if (call->status != XT_STATUS_ok) return call->status;
  int axis = xt_plain_dim_arg(call, 3, 0, self->info.ndim);
  xt_plain_parts *parts = NULL;
  for (int i = 0; i < 2 && call->status == XT_STATUS_ok; i++)
    if (list[i]->info.ndim != 1 || !list[i]->info.plain || list[i]->info.sizes[0] != self->info.sizes[axis])
      xt_plain_invalid(call, i + 1, "does not have one number for each channel");
  if (call->status != XT_STATUS_ok) return call->status;
  xt_status status = new_parts(list, 2, 2, &parts, call->error);
  if (status != XT_STATUS_ok) return status;
  parts->axis = axis;
  bool integers = xt_dtype_get(list[1]->info.dtype)->kind != XT_KIND_FLOAT;
  return make_quantized(call, self, integers ? XT_SCHEME_PER_CHANNEL : XT_SCHEME_OTHER, parts, out);
}

static const xt_plain_parts *quantized_arg(xt_plain_call *call, uint8_t scheme) {
  xt_tensor *self = xt_plain_any_arg(call, 0);
  if (call->status == XT_STATUS_ok && self->info.scheme != scheme)
    xt_plain_invalid(call, 0,
                     scheme == XT_SCHEME_PER_TENSOR ? "is not quantized per tensor" : "is not quantized per channel");
  return call->status == XT_STATUS_ok ? xt_plain_of(self)->parts : NULL;
}

xt_status xt_plain_op_q_scale(xt_plain_call *call, xt_value *out) {
  const xt_plain_parts *parts = quantized_arg(call, XT_SCHEME_PER_TENSOR);
  if (parts) *out = (xt_value){.kind = XT_VALUE_FLOAT, .number = parts->scale};
  return call->status;
}

xt_status xt_plain_op_q_zero_point(xt_plain_call *call, xt_value *out) {
  const xt_plain_parts *parts = quantized_arg(call, XT_SCHEME_PER_TENSOR);
  if (parts) *out = (xt_value){.kind = XT_VALUE_INT, .integer = parts->zero_point};
  return call->status;
}

xt_status xt_plain_op_q_per_channel_axis(xt_plain_call *call, xt_value *out) {
  const xt_plain_parts *parts = quantized_arg(call, XT_SCHEME_PER_CHANNEL);
  if (parts) *out = (xt_value){.kind = XT_VALUE_INT, .integer = parts->axis};
  return call->status;
}

static xt_status channels(xt_plain_call *call, int index, xt_value *out) {
  const xt_plain_parts *parts = quantized_arg(call, XT_SCHEME_PER_CHANNEL);
  xt_tensor *result = NULL;
  if (!parts) return call->status;
  return xt_plain_return(xt_plain_tensor_set_requires_grad(parts->list[index], false, &result, call->error), &result,
                         out);
}

xt_status xt_plain_op_q_per_channel_scales(xt_plain_call *call, xt_value *out) { return channels(call, 0, out); }
xt_status xt_plain_op_q_per_channel_zero_points(xt_plain_call *call, xt_value *out) { return channels(call, 1, out); }

/* The integers as a view, which only this file uses. */
static xt_status integers_of(const xt_tensor *tensor, xt_tensor **out, xt_error *error) {
  xt_plain_shape shape = xt_plain_shape_of(tensor);
  shape.dtype = xt_dtype_plain(shape.dtype);
  return xt_plain_view(tensor, &shape, out, error);
}

xt_status xt_plain_op_int_repr(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_any_arg(call, 0), *view, *copy = NULL;
  if (call->status == XT_STATUS_ok && !self->info.scheme) xt_plain_invalid(call, 0, "is not quantized");
  if (call->status != XT_STATUS_ok) return call->status;
  xt_status status = integers_of(self, &view, call->error);
  if (status != XT_STATUS_ok) return status;
  status = xt_plain_clone(view, &copy, call->error);
  xt_plain_drop(view);
  return xt_plain_return(status, &copy, out);
}

static double number_at(const xt_tensor_info *info, int64_t i) {
  size_t size = xt_dtype_get(info->dtype)->size;
  xt_element element = xt_element_read(info->dtype, (char *)info->data + (size_t)(i * info->strides[0]) * size);
  return element.kind == XT_ELEMENT_FLOAT ? element.re : (double)element.i;
}

/* Writes (integer - zero point) * scale. `from` is contiguous; elements of a channel are `inner` together. */
static void scale(const xt_tensor_info *from, const xt_plain_parts *parts, float *to) {
  size_t size = xt_dtype_get(from->dtype)->size;
  int64_t inner = 1, channel_count = parts->count ? from->sizes[parts->axis] : 1;
  for (int d = (int)parts->axis + 1; parts->count && d < from->ndim; d++) inner *= from->sizes[d];
  for (int64_t i = 0; i < from->numel; i++) {
    int64_t channel = i / inner % channel_count;
    double factor = parts->count ? number_at(&parts->list[0]->info, channel) : parts->scale;
    double zero = parts->count ? number_at(&parts->list[1]->info, channel) : (double)parts->zero_point;
    xt_element element = xt_element_read(from->dtype, (char *)from->data + (size_t)i * size);
    to[i] = (float)((double)element.i - zero) * (float)factor;
  }
}

xt_status xt_plain_dequantize(const xt_tensor *tensor, xt_tensor **out, xt_error *error) {
  xt_tensor *view, *integers = NULL;
  if (tensor->info.scheme == XT_SCHEME_OTHER)
    return xt_error_set(error, XT_STATUS_unsupported, "a tensor of this quantization scheme needs LibTorch. %s",
                        xt_plain_hint);
  xt_status status = integers_of(tensor, &view, error);
  if (status != XT_STATUS_ok) return status;
  status = xt_plain_contiguous(view, &integers, error);
  xt_plain_drop(view);
  if (status != XT_STATUS_ok) return status;
  xt_plain_shape shape = xt_plain_shape_of(integers);
  shape.dtype = XT_float32;
  status = xt_plain_empty(&shape, out, error);
  if (status == XT_STATUS_ok) scale(&integers->info, xt_plain_of(tensor)->parts, (*out)->info.data);
  xt_plain_drop(integers);
  return status;
}

xt_status xt_plain_op_dequantize(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_any_arg(call, 0), *result = NULL;
  if (call->status == XT_STATUS_ok && !self->info.scheme) xt_plain_invalid(call, 0, "is not quantized");
  if (call->status != XT_STATUS_ok) return call->status;
  return xt_plain_return(xt_plain_dequantize(self, &result, call->error), &result, out);
}

/* ---- Copies ---- */

xt_status xt_plain_clone_parts(const xt_tensor *tensor, xt_tensor **out, xt_error *error) {
  const xt_plain_handle *handle = xt_plain_of(tensor);
  const xt_tensor_info *info = &tensor->info;
  xt_tensor *list[XT_PLAIN_PARTS] = {NULL}, *view = NULL, *integers = NULL;
  xt_plain_parts *parts = NULL;
  int made = 0, frozen = info->scheme ? handle->parts->count : handle->parts->count - 1;
  xt_status status = XT_STATUS_ok;
  while (made < handle->parts->count && status == XT_STATUS_ok) {
    status = xt_plain_clone(handle->parts->list[made], &list[made], error);
    if (status == XT_STATUS_ok) made++;
  }
  if (status == XT_STATUS_ok && info->scheme) status = integers_of(tensor, &view, error);
  if (status == XT_STATUS_ok && view) status = xt_plain_clone(view, &integers, error);
  if (status == XT_STATUS_ok) status = new_parts(list, made, frozen, &parts, error);
  if (status == XT_STATUS_ok) {
    parts->coalesced = handle->parts->coalesced;
    parts->scale = handle->parts->scale;
    parts->zero_point = handle->parts->zero_point;
    parts->axis = handle->parts->axis;
    xt_plain_shape shape = {.ndim = info->ndim};
    memcpy(shape.sizes, info->sizes, (size_t)info->ndim * sizeof *shape.sizes);
    xt_plain_shape_contiguous(&shape);
    if (integers) shape = xt_plain_shape_of(integers);
    shape.dtype = info->dtype;
    status = xt_plain_compose(integers, &shape, info->layout, info->scheme, parts, out, error);
  }
  while (made--) xt_plain_drop(list[made]);
  if (view) xt_plain_drop(view);
  if (integers) xt_plain_drop(integers);
  return status;
}
