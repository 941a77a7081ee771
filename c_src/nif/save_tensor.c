#include "nif/save_tensor.h"

#include "core/tensor/desc.h"
#include "nif/tensor.h"

static void drop_tensor(void *owner) { xt_tensor_drop(owner); }

/* Takes over the reference to the handle. */
static void add_view(xt_save_tensor *t, xt_tensor *handle) {
  const xt_tensor_info *info = &handle->info;
  t->views[t->view_count++] = (xt_save_view){.dtype = info->dtype,
                                             .ndim = info->ndim,
                                             .sizes = info->sizes,
                                             .strides = info->strides,
                                             .data = info->data,
                                             .storage = info->storage,
                                             .storage_bytes = info->storage_bytes,
                                             .device = info->device,
                                             .staged = !info->plain,
                                             .remote = info->plain && info->device.type != XT_DEVICE_CPU,
                                             .owner = handle,
                                             .drop = drop_tensor};
}

/* Calls an operator with one argument and one result. */
static xt_status call_op(const char *name, xt_tensor *tensor, xt_value *out, xt_error *error) {
  xt_arena arena = {NULL};
  xt_value arg = {.kind = XT_VALUE_TENSOR, .tensor = tensor}, *results;
  xt_op_call op = {.name = name, .args = &arg, .arg_count = 1};
  size_t count = 0;
  *out = (xt_value){.kind = XT_VALUE_NIL};
  xt_status status = xt_torch->op(&op, &arena, &results, &count, error);
  if (status == XT_STATUS_ok && count) *out = results[0];
  xt_arena_free(&arena);
  return status;
}

/* Adds the results of the operators, a list that NULL ends, as views. */
static xt_status add_parts(xt_save_tensor *t, xt_tensor *tensor, const char *const *names, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  for (; *names && status == XT_STATUS_ok; names++) {
    xt_value part;
    status = call_op(*names, tensor, &part, error);
    if (status == XT_STATUS_ok) add_view(t, part.tensor);
  }
  return status;
}

static xt_status add_sparse(xt_save_tensor *t, xt_tensor *tensor, xt_error *error) {
  static const char *const coo[] = {"aten::_indices", "aten::_values", NULL};
  static const char *const rows[] = {"aten::crow_indices", "aten::col_indices", "aten::values", NULL};
  static const char *const columns[] = {"aten::ccol_indices", "aten::row_indices", "aten::values", NULL};
  const char *const *parts = t->layout == XT_LAYOUT_COO                                 ? coo
                             : t->layout == XT_LAYOUT_CSR || t->layout == XT_LAYOUT_BSR ? rows
                             : t->layout == XT_LAYOUT_CSC || t->layout == XT_LAYOUT_BSC ? columns
                                                                                        : NULL;
  if (!parts)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "tensors of this layout cannot be saved; convert the tensor with \"to_dense\" first");
  t->kind = XT_SAVE_SPARSE;
  xt_status status = add_parts(t, tensor, parts, error);
  if (status != XT_STATUS_ok || t->layout != XT_LAYOUT_COO) return status;
  xt_value coalesced;
  status = call_op("aten::is_coalesced", tensor, &coalesced, error);
  t->coalesced = coalesced.kind == XT_VALUE_BOOL && coalesced.boolean;
  return status;
}

static xt_status add_quantized(xt_save_tensor *t, xt_tensor *tensor, xt_error *error) {
  static const char *const integers[] = {"aten::int_repr", NULL};
  static const char *const channels[] = {"aten::q_per_channel_scales", "aten::q_per_channel_zero_points", NULL};
  xt_value value, zero;
  t->kind = XT_SAVE_QUANTIZED;
  xt_status status = add_parts(t, tensor, integers, error);
  if (status != XT_STATUS_ok) return status;
  if (tensor->info.scheme == XT_SCHEME_PER_CHANNEL) {
    status = add_parts(t, tensor, channels, error);
    if (status == XT_STATUS_ok) status = call_op("aten::q_per_channel_axis", tensor, &value, error);
    if (status == XT_STATUS_ok) t->axis = value.integer;
    return status;
  }
  if (tensor->info.scheme != XT_SCHEME_PER_TENSOR)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "tensors of this quantization scheme cannot be saved; use \"dequantize\" first");
  status = call_op("aten::q_scale", tensor, &value, error);
  if (status == XT_STATUS_ok) status = call_op("aten::q_zero_point", tensor, &zero, error);
  if (status != XT_STATUS_ok) return status;
  t->scale = value.number;
  t->zero_point = zero.integer;
  return status;
}

xt_status xt_save_tensor_describe(xt_tensor *handle, xt_save_tensor *out, xt_error *error) {
  const xt_tensor_info *info = &handle->info;
  out->kind = XT_SAVE_STRIDED;
  out->dtype = info->dtype;
  out->layout = info->layout;
  out->requires_grad = handle->requires_grad;
  out->ndim = info->ndim;
  out->sizes = info->sizes;
  out->strides = info->strides;
  out->view_count = 0;
  xt_status status = XT_STATUS_ok;
  if (info->layout != XT_LAYOUT_STRIDED) status = add_sparse(out, handle, error);
  else if (info->device.type == XT_DEVICE_META) out->kind = XT_SAVE_META;
  else if (info->scheme) status = add_quantized(out, handle, error);
  else add_view(out, xt_tensor_keep(handle));
  if (status != XT_STATUS_ok) xt_save_tensor_drop(out);
  return status;
}

void xt_save_tensor_cast(xt_save_tensor *t, xt_dtype dtype) {
  xt_save_view *view = &t->views[0];
  if (t->kind != XT_SAVE_STRIDED || dtype == t->dtype) return;
  view->cast = view->staged = true;
  view->remote = false;
  view->from = view->dtype;
  view->dtype = t->dtype = dtype;
}

/* Calls an operator whose result is a tensor. */
static xt_status call_tensor_op(const char *name, const xt_value *args, size_t count, xt_tensor **out,
                                xt_error *error) {
  xt_arena arena = {NULL};
  xt_value *results;
  xt_op_call op = {.name = name, .args = args, .arg_count = count};
  size_t result_count = 0;
  xt_status status = xt_torch->op(&op, &arena, &results, &result_count, error);
  if (status == XT_STATUS_ok) *out = results[0].tensor;
  xt_arena_free(&arena);
  return status;
}

static xt_status cast(xt_tensor *tensor, xt_dtype dtype, xt_tensor **out, xt_error *error) {
  xt_value args[] = {{.kind = XT_VALUE_TENSOR, .tensor = tensor},
                     {.kind = XT_VALUE_NAME, .name = {.text = xt_dtype_get(dtype)->name}}};
  return call_tensor_op("aten::to.dtype", args, 2, out, error);
}

enum { CAST_BYTES = 16 << 20 }; /* of the elements that are converted, or fetched from a device, at a time */

/* Returns elements of a contiguous tensor as a view of one dimension. */
static xt_status narrow(xt_tensor *tensor, int64_t first, int64_t count, xt_tensor **out, xt_error *error) {
  xt_tensor *flat;
  xt_value all[] = {{.kind = XT_VALUE_TENSOR, .tensor = tensor},
                    {.kind = XT_VALUE_INT, .integer = 0},
                    {.kind = XT_VALUE_INT, .integer = -1}};
  xt_status status = call_tensor_op("aten::flatten.using_ints", all, 3, &flat, error);
  if (status != XT_STATUS_ok) return status;
  xt_value part[] = {{.kind = XT_VALUE_TENSOR, .tensor = flat},
                     {.kind = XT_VALUE_INT, .integer = 0},
                     {.kind = XT_VALUE_INT, .integer = first},
                     {.kind = XT_VALUE_INT, .integer = first + count}};
  status = call_tensor_op("aten::slice.Tensor", part, 4, out, error);
  xt_tensor_drop(flat);
  return status;
}

static int64_t count_elements(const xt_save_view *view) {
  int64_t count = 1;
  for (int d = 0; d < view->ndim; d++) count *= view->sizes[d];
  return count;
}

/* Converts the elements from `first` on: a part, so that a large tensor is never in memory twice. Elements that do not
 * lie one after another are all converted together. */
static xt_status cast_part(const xt_save_view *view, int64_t first, int64_t *count, xt_tensor **out, xt_error *error) {
  int64_t most = CAST_BYTES / (int64_t)xt_dtype_get(view->dtype)->size;
  xt_tensor *part;
  if (*count <= most || !xt_save_view_is_contiguous(view)) return cast(view->owner, view->dtype, out, error);
  *count = *count - first < most ? *count - first : most;
  xt_status status = narrow(view->owner, first, *count, &part, error);
  if (status != XT_STATUS_ok) return status;
  status = cast(part, view->dtype, out, error);
  xt_tensor_drop(part);
  return status;
}

/* Copies bytes of the memory of a device: `size` at most, from the byte `from` after `base` on. */
static xt_status fetch_bytes(const xt_save_view *view, const uint8_t *base, uint64_t from, xt_tensor **fetched,
                             uint64_t *size, xt_error *error) {
  const xt_tensor *owner = view->owner;
  if (*size > CAST_BYTES) *size = CAST_BYTES;
  int64_t count = (int64_t)*size, one = 1;
  xt_tensor_layout layout = {1, &count, &one, base - (const uint8_t *)owner->info.storage + (int64_t)from};
  xt_tensor *part;
  xt_status status = xt_torch->tensor_view(owner, XT_uint8, &layout, &part, error);
  if (status != XT_STATUS_ok) return status;
  status = xt_torch->tensor_plain(part, fetched, error);
  xt_tensor_drop(part);
  return status;
}

xt_status xt_save_tensor_fetch(const xt_save_view *view, const xt_payload *payload, bool named, uint64_t from,
                               xt_tensor **fetched, uint64_t *size, xt_error *error) {
  *size = payload->bytes - from;
  if (view->remote && !named) return fetch_bytes(view, view->storage, from, fetched, size, error);
  if (view->remote && xt_save_view_is_contiguous(view))
    return fetch_bytes(view, view->data, from, fetched, size, error);
  int64_t count = count_elements(view), item = (int64_t)xt_dtype_get(view->dtype)->size;
  xt_tensor *converted = NULL;
  xt_status status = XT_STATUS_ok;
  if (view->cast) status = cast_part(view, (int64_t)from / item, &count, &converted, error);
  if (status == XT_STATUS_ok) status = xt_torch->tensor_plain(view->cast ? converted : view->owner, fetched, error);
  if (converted) xt_tensor_drop(converted);
  if (status != XT_STATUS_ok) return status;
  *size = (uint64_t)(count * item);
  status = xt_tensor_check_memory(view->owner, error);
  if (status == XT_STATUS_ok) return status;
  xt_tensor_drop(*fetched);
  *fetched = NULL;
  return status;
}
