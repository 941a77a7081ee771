/* Rebuilds tensors like the functions of torch._utils. */
#include "core/pickle/rebuild_internal.h"

xt_status xt_rebuild_dims(xt_rebuild *r, const xt_node *node, const char *what, uint32_t *ndim, int64_t **out) {
  if (!node || node->kind != XT_NODE_TUPLE) return xt_rebuild_corrupt(r, "tensor %s is not a tuple", what);
  if (node->list.count > XT_MAX_DIMS)
    return xt_rebuild_corrupt(r, "tensor of %zu dimensions; at most %d are supported", node->list.count, XT_MAX_DIMS);
  *ndim = (uint32_t)node->list.count;
  *out = xt_arena_alloc(r->arena, node->list.count, sizeof **out);
  if (!*out) return xt_rebuild_no_memory(r);
  for (size_t i = 0; i < node->list.count; i++) {
    const xt_node *dim = node->list.items[i];
    if (dim->kind != XT_NODE_INT || dim->integer < 0)
      return xt_rebuild_corrupt(r, "tensor %s contains a value that is not a non-negative integer", what);
    (*out)[i] = dim->integer;
  }
  return XT_STATUS_ok;
}

/* Keys plus values. torch writes a few; a dict that many tensors share is read for each of them. */
enum { MAX_METADATA = 32 };

static xt_status get_metadata(xt_rebuild *r, const xt_node *node, xt_tensor_desc *t) {
  if (!node || node->kind != XT_NODE_DICT) return XT_STATUS_ok;
  if (node->list.count > MAX_METADATA) return xt_rebuild_corrupt(r, "tensor metadata has too many entries");
  for (size_t i = 0; i + 1 < node->list.count; i += 2) {
    const xt_node *key = node->list.items[i], *value = node->list.items[i + 1];
    if (xt_node_is_text(key, "conj", 4) && !xt_node_flag(value, &t->conj))
      return xt_rebuild_corrupt(r, "conj bit of a tensor is not a boolean");
    if (xt_node_is_text(key, "neg", 3) && !xt_node_flag(value, &t->neg))
      return xt_rebuild_corrupt(r, "neg bit of a tensor is not a boolean");
  }
  return XT_STATUS_ok;
}

/* _rebuild_tensor(storage, offset, size, stride)
 * _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata])
 * _rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype[, metadata]) */
xt_status xt_rebuild_tensor(xt_rebuild *r, const xt_node *args, int version, xt_node **out) {
  const xt_node *storage = xt_node_arg(args, 0), *offset = xt_node_arg(args, 1),
                *dtype = version == 3 ? xt_node_arg(args, 6) : NULL;
  if (!storage || storage->kind != XT_NODE_STORAGE || !offset || offset->kind != XT_NODE_INT || offset->integer < 0)
    return xt_rebuild_corrupt(r, "tensor without a storage or a valid offset");
  if (version == 3 && (!dtype || dtype->kind != XT_NODE_DTYPE)) return xt_rebuild_corrupt(r, "tensor without a dtype");
  *out = xt_node_new_tensor(r->arena);
  if (!*out) return xt_rebuild_no_memory(r);
  xt_tensor_desc *t = (*out)->tensor;
  t->storage = storage->storage.index;
  t->dtype = dtype ? dtype->dtype : r->storages->list[t->storage].dtype;
  if (dtype) r->storages->list[t->storage].element = dtype->dtype;
  if (__builtin_add_overflow(offset->integer, storage->storage.start, &t->offset))
    return xt_tensor_desc_invalid(r->at, "offset overflows 64 bits", r->error);
  uint32_t strides;
  xt_status status = xt_rebuild_dims(r, xt_node_arg(args, 2), "size", &t->ndim, &t->sizes);
  if (status == XT_STATUS_ok) status = xt_rebuild_dims(r, xt_node_arg(args, 3), "stride", &strides, &t->strides);
  if (status != XT_STATUS_ok) return status;
  if (strides != t->ndim) return xt_rebuild_corrupt(r, "tensor with %u sizes but %u strides", t->ndim, strides);
  if (version > 1 && !xt_node_flag(xt_node_arg(args, 4), &t->requires_grad))
    return xt_rebuild_corrupt(r, "requires_grad is not a boolean");
  status = get_metadata(r, xt_node_arg(args, version == 3 ? 7 : 6), t);
  return status == XT_STATUS_ok ? xt_tensor_desc_check(t, r->storages, &storage->storage, r->at, r->error) : status;
}

xt_status xt_rebuild_meta(xt_rebuild *r, const xt_node *args, xt_node **out) {
  const xt_node *dtype = xt_node_arg(args, 0);
  uint32_t strides;
  if (!dtype || dtype->kind != XT_NODE_DTYPE) return xt_rebuild_corrupt(r, "tensor without a dtype");
  *out = xt_node_new_tensor(r->arena);
  if (!*out) return xt_rebuild_no_memory(r);
  xt_tensor_desc *t = (*out)->tensor;
  t->storage = XT_NO_STORAGE;
  t->dtype = dtype->dtype;
  xt_status status = xt_rebuild_dims(r, xt_node_arg(args, 1), "size", &t->ndim, &t->sizes);
  if (status == XT_STATUS_ok) status = xt_rebuild_dims(r, xt_node_arg(args, 2), "stride", &strides, &t->strides);
  if (status != XT_STATUS_ok) return status;
  if (strides != t->ndim) return xt_rebuild_corrupt(r, "tensor with %u sizes but %u strides", t->ndim, strides);
  if (!xt_node_flag(xt_node_arg(args, 3), &t->requires_grad))
    return xt_rebuild_corrupt(r, "requires_grad is not a boolean");
  return xt_tensor_desc_check(t, r->storages, NULL, r->at, r->error);
}

/* ---- Kinds of tensors ---- */

/* Makes a subclass node: a tensor or object with a class and attributes of its own. */
static xt_status make_subclass(xt_rebuild *r, xt_node *made, xt_node *class, xt_node *state, xt_node **out) {
  *out = xt_node_new(r->arena, XT_NODE_SUBCLASS);
  if (!*out || !xt_node_append(r->arena, *out, made) || !xt_node_append(r->arena, *out, class) ||
      !xt_node_append(r->arena, *out, state))
    return xt_rebuild_no_memory(r);
  return XT_STATUS_ok;
}

static xt_node *new_global(xt_rebuild *r, const char *module, const char *name) {
  xt_node *global = xt_node_new(r->arena, XT_NODE_GLOBAL);
  if (!global) return NULL;
  global->global.module = module, global->global.module_size = (uint32_t)strlen(module);
  global->global.name = name, global->global.name_size = (uint32_t)strlen(name);
  return global;
}

static bool has_state(const xt_node *state) {
  return state && state->kind != XT_NODE_NONE && !(state->kind == XT_NODE_DICT && !state->list.count);
}

/* (data, requires_grad[, hooks[, state]]) */
xt_status xt_rebuild_parameter(xt_rebuild *r, const xt_node *args, xt_node **out) {
  const xt_node *data = xt_node_arg(args, 0);
  xt_node *state = xt_node_arg(args, 3), *made;
  if (!data || data->kind != XT_NODE_TENSOR) return XT_STATUS_ok; /* a tensor that stayed an inert object */
  made = xt_node_new_tensor(r->arena);
  if (!made) return xt_rebuild_no_memory(r);
  *made->tensor = *data->tensor;
  made->tensor->parameter = made->tensor->requires_grad = true;
  if (!xt_node_flag(xt_node_arg(args, 1), &made->tensor->requires_grad))
    return xt_rebuild_corrupt(r, "requires_grad is not a boolean");
  if (!has_state(state)) return *out = made, XT_STATUS_ok;
  xt_node *class = new_global(r, "torch.nn.parameter", "Parameter");
  return class ? make_subclass(r, made, class, state, out) : xt_rebuild_no_memory(r);
}

/* _rebuild_device_tensor_from_numpy, …_from_cpu_tensor: (data, dtype, device, requires_grad). The device is ignored:
 * the data is in the file. */
xt_status xt_rebuild_device_tensor(xt_rebuild *r, const xt_node *args, xt_node **out) {
  const xt_node *data = xt_node_arg(args, 0), *dtype = xt_node_arg(args, 1);
  if (!data || data->kind != XT_NODE_TENSOR || !dtype || dtype->kind != XT_NODE_DTYPE ||
      dtype->dtype != data->tensor->dtype)
    return XT_STATUS_ok;
  *out = xt_node_new_tensor(r->arena);
  if (!*out) return xt_rebuild_no_memory(r);
  *(*out)->tensor = *data->tensor;
  return xt_node_flag(xt_node_arg(args, 3), &(*out)->tensor->requires_grad)
             ? XT_STATUS_ok
             : xt_rebuild_corrupt(r, "requires_grad is not a boolean");
}

/* _rebuild_from_type_v2(function, class, args, state): the result of function(*args) as an instance of the class. */
xt_status xt_rebuild_from_type(xt_rebuild *r, const xt_node *args, xt_node **out) {
  xt_node *function = xt_node_arg(args, 0), *class = xt_node_arg(args, 1), *inner = xt_node_arg(args, 2),
          *state = xt_node_arg(args, 3);
  xt_node *made = NULL;
  if (!state || class->kind != XT_NODE_GLOBAL || inner->kind != XT_NODE_TUPLE) return XT_STATUS_ok;
  if (xt_node_is_global(function, "torch._tensor", "_rebuild_from_type_v2") ||
      xt_node_is_global(function, "torch.tensor", "_rebuild_from_type_v2"))
    return xt_rebuild_corrupt(r, "_rebuild_from_type_v2 calls itself");
  xt_status status = xt_rebuild_reduce(r, function, inner, &made);
  if (status != XT_STATUS_ok) return status;
  bool plain = xt_node_is_global(class, "torch", "Tensor") && !has_state(state);
  if (made && made->kind == XT_NODE_TENSOR && plain) return *out = made, status;
  if (!made) {
    made = xt_node_new(r->arena, XT_NODE_OBJECT);
    if (!made) return xt_rebuild_no_memory(r);
    made->object->callable = function;
    made->object->args = inner;
  }
  return make_subclass(r, made, class, state, out);
}

/* ---- Files of the oldest torch versions: a class is called and its state is set by BUILD ---- */

static bool is_tensor_class(const xt_node *g) {
  if (g->kind != XT_NODE_GLOBAL || g->global.name_size < 6) return false;
  return xt_text_equals(g->global.name + g->global.name_size - 6, 6, "Tensor") && g->global.module_size >= 5 &&
         !memcmp(g->global.module, "torch", 5);
}

/* Variables and parameters are classes of torch. An object of another class may have a similar state. */
static bool is_torch_class(const xt_node *class) {
  return class->kind == XT_NODE_GLOBAL && class->global.module_size > 6 && !memcmp(class->global.module, "torch.", 6);
}

/* The state is (storage, offset, size, stride) for a tensor and (data, _, hooks, requires_grad, _) for a variable.
 * Later versions made the variable from its data and set (requires_grad, _, hooks). */
xt_status xt_rebuild_tensor_state(xt_rebuild *r, xt_node *target, xt_node *state, bool *done) {
  xt_node *made = NULL;
  if (state->kind != XT_NODE_TUPLE) return XT_STATUS_ok;
  if (target->kind == XT_NODE_TENSOR) {
    *done = state->list.count == 3 && xt_node_flag(state->list.items[0], &target->tensor->requires_grad);
    return XT_STATUS_ok;
  }
  if (target->kind != XT_NODE_OBJECT || target->object->args->list.count) return XT_STATUS_ok;
  xt_status status = XT_STATUS_ok;
  if (state->list.count == 4 && is_tensor_class(target->object->callable)) {
    status = xt_rebuild_tensor(r, state, 1, &made);
  } else if (state->list.count == 5 && state->list.items[0]->kind == XT_NODE_TENSOR &&
             is_torch_class(target->object->callable)) {
    made = state->list.items[0];
    if (!xt_node_flag(state->list.items[3], &made->tensor->requires_grad)) made = NULL;
  }
  *done = made != NULL;
  if (status == XT_STATUS_ok && made) *target = *made; /* in place: the memo and containers may already refer to it */
  return status;
}
