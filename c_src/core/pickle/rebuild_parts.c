/* Rebuilds tensors that consist of other tensors: sparse and quantized ones. */
#include "core/pickle/rebuild_internal.h"

/* torch.serialization._get_layout('torch.sparse_coo') */
static bool get_layout(const xt_node *node, xt_layout *out) {
  if (!node || node->kind != XT_NODE_OBJECT ||
      !xt_node_is_global(node->object->callable, "torch.serialization", "_get_layout") ||
      node->object->args->list.count != 1)
    return false;
  const xt_node *name = node->object->args->list.items[0];
  return name->kind == XT_NODE_TEXT && name->text.size > 6 && !memcmp(name->text.data, "torch.", 6) &&
         xt_layout_from_name(name->text.data + 6, name->text.size - 6, out) && *out != XT_LAYOUT_STRIDED;
}

/* Returns the tensor if it can be a part: strided, not quantized and with a storage. Otherwise returns NULL. */
static const xt_tensor_desc *get_part(const xt_node *node) {
  bool usable = node && node->kind == XT_NODE_TENSOR && node->tensor->layout == XT_LAYOUT_STRIDED &&
                !node->tensor->quantized && node->tensor->storage != XT_NO_STORAGE;
  return usable ? node->tensor : NULL;
}

/* (layout, (indices, values, size[, coalesced])) or (layout, (compressed, plain, values, size)) */
xt_status xt_rebuild_sparse(xt_rebuild *r, const xt_node *args, xt_node **out) {
  const xt_node *data = xt_node_arg(args, 1);
  xt_layout layout;
  if (!get_layout(xt_node_arg(args, 0), &layout) || !data || data->kind != XT_NODE_TUPLE) return XT_STATUS_ok;
  uint8_t parts = layout == XT_LAYOUT_COO ? 2 : 3;
  *out = xt_node_new_tensor(r->arena);
  xt_tensor_parts *more = xt_arena_alloc(r->arena, 1, sizeof *more);
  if (!*out || !more) return xt_rebuild_no_memory(r);
  xt_tensor_desc *t = (*out)->tensor;
  t->more = more;
  t->storage = XT_NO_STORAGE;
  t->layout = (uint8_t)layout;
  t->part_count = parts;
  for (uint32_t i = 0; i < parts; i++)
    if (!(more->parts[i] = get_part(xt_node_arg(data, i))))
      return xt_rebuild_corrupt(r, "part of a sparse tensor is not a strided tensor");
  for (uint32_t i = 0; i + 1 < parts; i++) {
    xt_dtype dtype = more->parts[i]->dtype;
    bool valid = dtype == XT_int64 || (dtype == XT_int32 && layout != XT_LAYOUT_COO);
    if (!valid || dtype != more->parts[0]->dtype)
      return xt_rebuild_corrupt(r, "indices of a sparse tensor have the dtype %s", xt_dtype_get(dtype)->name);
  }
  t->dtype = more->parts[parts - 1]->dtype;
  xt_status status = xt_rebuild_dims(r, xt_node_arg(data, parts), "size", &t->ndim, &t->sizes);
  if (status != XT_STATUS_ok) return status;
  t->strides = xt_arena_alloc(r->arena, t->ndim, sizeof *t->strides); /* zeros: a sparse tensor has no strides */
  int64_t elements = 1;
  for (uint32_t d = 0; d < t->ndim; d++)
    if (t->sizes[d] && __builtin_mul_overflow(elements, t->sizes[d], &elements))
      return xt_tensor_desc_invalid(r->at, "shape overflows 64 bits", r->error);
  return t->strides ? XT_STATUS_ok : xt_rebuild_no_memory(r);
}

/* (storage, offset, size, stride, (scheme, scale, zero_point) or (scheme, scales, zero_points, axis), requires_grad,
 * hooks) */
xt_status xt_rebuild_quantized(xt_rebuild *r, const xt_node *args, xt_node **out) {
  const xt_node *q = xt_node_arg(args, 4);
  xt_node *made = NULL;
  if (!q || q->kind != XT_NODE_TUPLE || q->list.count < 3)
    return xt_rebuild_corrupt(r, "quantized tensor without quantizer parameters");
  bool channels = q->list.count == 4 && xt_node_is_global(xt_node_arg(q, 0), "torch", "per_channel_affine");
  if (!channels && !xt_node_is_global(xt_node_arg(q, 0), "torch", "per_tensor_affine")) return XT_STATUS_ok;
  xt_status status = xt_rebuild_tensor(r, args, 1, &made);
  if (status != XT_STATUS_ok) return status;
  xt_tensor_desc *t = made->tensor;
  if (t->dtype != XT_qint8 && t->dtype != XT_quint8 && t->dtype != XT_qint32)
    return XT_STATUS_ok; /* several elements per byte: not supported */
  const xt_node *scale = xt_node_arg(q, 1), *zero = xt_node_arg(q, 2), *axis = xt_node_arg(q, 3);
  xt_tensor_parts *more = xt_arena_alloc(r->arena, 1, sizeof *more);
  if (!more) return xt_rebuild_no_memory(r);
  t->quantized = true;
  t->more = more;
  if (channels) {
    t->part_count = 2;
    more->parts[0] = get_part(scale);
    more->parts[1] = get_part(zero);
    if (!more->parts[0] || !more->parts[1] || !axis || axis->kind != XT_NODE_INT || axis->integer < 0 ||
        axis->integer >= t->ndim)
      return xt_rebuild_corrupt(r, "invalid per-channel parameters of a quantized tensor");
    /* LibTorch accepts more combinations when it makes the tensor, and ends the process when it dequantizes some. */
    if (xt_dtype_get(more->parts[0]->dtype)->kind != XT_KIND_FLOAT ||
        xt_dtype_get(more->parts[1]->dtype)->kind != XT_KIND_INT)
      return xt_rebuild_corrupt(r, "per-channel scales must be floats and zero points integers, found %s and %s",
                                xt_dtype_get(more->parts[0]->dtype)->name, xt_dtype_get(more->parts[1]->dtype)->name);
    for (int i = 0; i < 2; i++) /* one value for each index along the axis; LibTorch does not check this */
      if (more->parts[i]->ndim != 1 || more->parts[i]->sizes[0] != t->sizes[axis->integer])
        return xt_rebuild_corrupt(
            r, "number of per-channel parameters of a quantized tensor differs from the size of its axis");
    more->axis = axis->integer;
  } else if (!xt_node_number(scale, &more->scale) || zero->kind != XT_NODE_INT) {
    return xt_rebuild_corrupt(r, "scale or zero point of a quantized tensor is not a number");
  } else {
    more->zero_point = zero->integer;
  }
  if (!xt_node_flag(xt_node_arg(args, 5), &t->requires_grad))
    return xt_rebuild_corrupt(r, "requires_grad is not a boolean");
  *out = made;
  return XT_STATUS_ok;
}
