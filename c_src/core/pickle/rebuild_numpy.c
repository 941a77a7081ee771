/* Rebuilds NumPy arrays as tensors, and NumPy scalars. Types that have no tensor dtype (objects, strings, dates) stay
 * inert objects. */
#include "core/pickle/rebuild_internal.h"

/* Any module of NumPy: numpy.core.multiarray, since NumPy 2.0 numpy._core.multiarray, … */
bool xt_rebuild_is_numpy(const xt_node *g) {
  return g->global.module_size >= 5 && !memcmp(g->global.module, "numpy", 5);
}

/* Checks for a NumPy global whose module ends in `module`. */
static bool is_numpy_global(const xt_node *g, const char *module, const char *name) {
  if (g->kind != XT_NODE_GLOBAL || !xt_rebuild_is_numpy(g) ||
      !xt_text_equals(g->global.name, g->global.name_size, name))
    return false;
  size_t size = strlen(module);
  return g->global.module_size >= size && !memcmp(g->global.module + g->global.module_size - size, module, size);
}

/* Reads numpy.dtype('f4', …) with the state (3, '<', …). Returns false if there is no such tensor dtype. */
static bool get_dtype(const xt_node *node, xt_dtype *dtype, bool *big_endian) {
  if (!node || node->kind != XT_NODE_OBJECT || !is_numpy_global(node->object->callable, "numpy", "dtype")) return false;
  const xt_node *code = xt_node_arg(node->object->args, 0), *state = node->object->state;
  const xt_node *order = state && state->kind == XT_NODE_TUPLE ? xt_node_arg(state, 1) : NULL;
  *big_endian = order && xt_node_is_text(order, ">", 1);
  *dtype = code && code->kind == XT_NODE_TEXT ? xt_dtype_from_numpy(code->text.data, code->text.size) : XT_DTYPE_COUNT;
  return *dtype != XT_DTYPE_COUNT;
}

/* bytes, bytearray, or a Python 2 string */
static bool is_data(const xt_node *node) {
  return node && (node->kind == XT_NODE_BYTES || node->kind == XT_NODE_BYTEARRAY || node->kind == XT_NODE_TEXT);
}

static xt_status make_array(xt_rebuild *r, const xt_node *shape, const xt_node *type, bool fortran, const xt_node *data,
                            xt_node **out) {
  int64_t sizes[XT_MAX_DIMS], numel = 1, bytes;
  xt_dtype dtype;
  bool big_endian;
  uint32_t storage;
  if (!shape || shape->kind != XT_NODE_TUPLE || !get_dtype(type, &dtype, &big_endian) || !is_data(data))
    return XT_STATUS_ok;
  if (shape->list.count > XT_MAX_DIMS)
    return xt_rebuild_corrupt(r, "NumPy array of %zu dimensions; at most %d are supported", shape->list.count,
                              XT_MAX_DIMS);
  for (size_t d = 0; d < shape->list.count; d++) {
    const xt_node *size = shape->list.items[d];
    if (size->kind != XT_NODE_INT || size->integer < 0)
      return xt_rebuild_corrupt(r, "shape of a NumPy array is not a tuple of non-negative integers");
    sizes[d] = size->integer;
    if (__builtin_mul_overflow(numel, sizes[d], &numel))
      return xt_rebuild_corrupt(r, "shape of a NumPy array overflows 64 bits");
  }
  if (__builtin_mul_overflow(numel, (int64_t)xt_dtype_get(dtype)->size, &bytes) || (uint64_t)bytes != data->text.size)
    return xt_rebuild_corrupt(r, "shape of a NumPy array does not fit its %zu bytes of data", data->text.size);
  xt_status status = xt_rebuild_add_inline(r, dtype, data->text.data, data->text.size, big_endian, &storage);
  if (status != XT_STATUS_ok) return status;
  *out = xt_node_new_tensor(r->arena);
  if (!*out) return xt_rebuild_no_memory(r);
  return xt_tensor_desc_set_contiguous((*out)->tensor, r->storages, storage, dtype, sizes, (uint32_t)shape->list.count,
                                       fortran, r->at, r->error);
}

/* scalar(dtype, bytes) */
static xt_status make_scalar(xt_rebuild *r, const xt_node *args, xt_node **out) {
  const xt_node *data = xt_node_arg(args, 1);
  xt_dtype dtype;
  bool big_endian;
  if (!get_dtype(xt_node_arg(args, 0), &dtype, &big_endian) || !is_data(data)) return XT_STATUS_ok;
  size_t size = xt_dtype_get(dtype)->size;
  if (data->text.size != size)
    return xt_rebuild_corrupt(r, "NumPy scalar of %zu bytes; its dtype has %zu", data->text.size, size);
  *out = xt_node_new(r->arena, XT_NODE_SCALAR);
  if (!*out) return xt_rebuild_no_memory(r);
  (*out)->scalar.dtype = dtype;
  size_t part = xt_dtype_get(dtype)->kind == XT_KIND_COMPLEX ? size / 2 : size;
  for (size_t i = 0; i < size; i++)
    (*out)->scalar.bytes[i] = (uint8_t)data->text.data[big_endian ? i / part * part + (part - 1 - i % part) : i];
  return XT_STATUS_ok;
}

xt_status xt_rebuild_numpy(xt_rebuild *r, const xt_node *callable, const xt_node *args, xt_node **out) {
  if (is_numpy_global(callable, "multiarray", "scalar")) return make_scalar(r, args, out);
  /* protocol 5: _frombuffer(bytes, dtype, shape, order) */
  if (is_numpy_global(callable, "numeric", "_frombuffer")) {
    const xt_node *order = xt_node_arg(args, 3);
    return make_array(r, xt_node_arg(args, 2), xt_node_arg(args, 1), order && xt_node_is_text(order, "F", 1),
                      xt_node_arg(args, 0), out);
  }
  return XT_STATUS_ok;
}

/* _reconstruct(ndarray, (0,), b'b') with the state (version, shape, dtype, is_fortran, bytes). The oldest NumPy
 * versions write no version. */
xt_status xt_rebuild_numpy_state(xt_rebuild *r, xt_node *target, const xt_node *state, bool *done) {
  xt_node *made = NULL;
  bool fortran = false;
  if (target->kind != XT_NODE_OBJECT || !is_numpy_global(target->object->callable, "multiarray", "_reconstruct") ||
      state->kind != XT_NODE_TUPLE || state->list.count < 4 || state->list.count > 5)
    return XT_STATUS_ok;
  size_t first = state->list.count - 4;
  const xt_node *order = xt_node_arg(state, first + 2);
  if (order->kind == XT_NODE_INT) fortran = order->integer != 0;
  else if (!xt_node_flag(order, &fortran)) return XT_STATUS_ok;
  xt_status status = make_array(r, xt_node_arg(state, first), xt_node_arg(state, first + 1), fortran,
                                xt_node_arg(state, first + 3), &made);
  *done = made != NULL;
  if (status == XT_STATUS_ok && made) *target = *made;
  return status;
}
