#include "meaning.h"

#include <stdlib.h>
#include <string.h>

static xt_status corrupt(xt_meaning *m, const char *what) {
  return xt_error_at(m->error, XT_STATUS_corrupt, m->at, "the pickle is broken: %s", what);
}

static xt_status no_memory(xt_meaning *m) {
  return xt_error_set(m->error, XT_STATUS_no_memory, "no memory for the pickle's objects");
}

void xt_meaning_free(xt_meaning *meaning) {
  free(meaning->storages);
  xt_table_free(&meaning->by_key);
  meaning->storages = NULL;
  meaning->storage_count = 0;
}

/* ---- Names ---- */

static bool equals(const char *text, size_t size, const char *word) {
  return strlen(word) == size && !memcmp(text, word, size);
}

static bool in_list(const char *text, size_t size, const char *const *list) {
  for (; *list; list++)
    if (equals(text, size, *list)) return true;
  return false;
}

/* FloatStorage → float32 and so on; XT_DTYPE_COUNT when the class is no storage. Untyped ones count bytes. */
static xt_dtype storage_dtype(const xt_node *class) {
  static const struct {
    const char *name;
    xt_dtype dtype;
  } classes[] = {{"DoubleStorage", XT_float64},
                 {"FloatStorage", XT_float32},
                 {"HalfStorage", XT_float16},
                 {"BFloat16Storage", XT_bfloat16},
                 {"LongStorage", XT_int64},
                 {"IntStorage", XT_int32},
                 {"ShortStorage", XT_int16},
                 {"CharStorage", XT_int8},
                 {"ByteStorage", XT_uint8},
                 {"BoolStorage", XT_bool},
                 {"ComplexDoubleStorage", XT_complex128},
                 {"ComplexFloatStorage", XT_complex64},
                 {"QInt8Storage", XT_qint8},
                 {"QUInt8Storage", XT_quint8},
                 {"QInt32Storage", XT_qint32},
                 {"QUInt4x2Storage", XT_quint4x2},
                 {"QUInt2x4Storage", XT_quint2x4},
                 {"UntypedStorage", XT_uint8},
                 {"_UntypedStorage", XT_uint8}};
  static const char *const modules[] = {"torch",        "torch.cuda",        "torch.storage",
                                        "torch.sparse", "torch.cuda.sparse", NULL};
  if (class->kind != XT_NODE_GLOBAL || !in_list(class->global.module, class->global.module_size, modules))
    return XT_DTYPE_COUNT;
  for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
    if (equals(class->global.name, class->global.name_size, classes[i].name)) return classes[i].dtype;
  return XT_DTYPE_COUNT;
}

/* What torch's weights_only unpickler lets a file name. */
static bool allowed(const xt_node *g) {
  static const char *const torch_names[] = {"Size",
                                            "Tensor",
                                            "device",
                                            "per_tensor_affine",
                                            "per_channel_affine",
                                            "per_tensor_symmetric",
                                            "per_channel_symmetric",
                                            "per_channel_affine_float_qparams",
                                            "TypedStorage",
                                            "UntypedStorage",
                                            NULL};
  static const char *const rebuilds[] = {"_rebuild_parameter",
                                         "_rebuild_parameter_with_state",
                                         "_rebuild_qtensor",
                                         "_rebuild_tensor",
                                         "_rebuild_tensor_v2",
                                         "_rebuild_tensor_v3",
                                         "_rebuild_sparse_tensor",
                                         "_rebuild_meta_tensor_no_storage",
                                         "_rebuild_wrapper_subclass",
                                         "_rebuild_device_tensor_from_numpy",
                                         "_rebuild_device_tensor_from_cpu_tensor",
                                         "_rebuild_xla_tensor",
                                         NULL};
  static const char *const builtins[] = {"bytearray", "set", "complex", NULL};
  static const char *const collections[] = {"OrderedDict", "Counter", NULL};
  static const char *const tensor_modules[] = {"torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse", NULL};
  const char *name = g->global.name, *module = g->global.module;
  size_t name_size = g->global.name_size, module_size = g->global.module_size;
  if (equals(module, module_size, "collections")) return in_list(name, name_size, collections);
  if (equals(module, module_size, "builtins") || equals(module, module_size, "__builtin__"))
    return in_list(name, name_size, builtins);
  if (equals(module, module_size, "_codecs")) return equals(name, name_size, "encode");
  if (equals(module, module_size, "torch.nn.parameter")) return equals(name, name_size, "Parameter");
  if (equals(module, module_size, "torch.serialization")) return equals(name, name_size, "_get_layout");
  if (equals(module, module_size, "torch._utils")) return in_list(name, name_size, rebuilds);
  if (equals(module, module_size, "torch._tensor") || equals(module, module_size, "torch.tensor"))
    return equals(name, name_size, "_rebuild_from_type_v2");
  if (equals(module, module_size, "torch.storage"))
    return equals(name, name_size, "TypedStorage") || equals(name, name_size, "UntypedStorage");
  if (equals(module, module_size, "torch") && in_list(name, name_size, torch_names)) return true;
  if (storage_dtype(g) != XT_DTYPE_COUNT) return true;
  /* torch.FloatTensor and its kin: a capital, and Tensor at the end */
  return in_list(module, module_size, tensor_modules) && name_size > 6 && !memcmp(name + name_size - 6, "Tensor", 6) &&
         *name >= 'A' && *name <= 'Z';
}

xt_status xt_meaning_global(xt_meaning *m, xt_node *g) {
  char name[64];
  bool lower = g->global.name_size && *g->global.name >= 'a' && *g->global.name <= 'z'; /* as all dtypes are */
  if (lower && equals(g->global.module, g->global.module_size, "torch") && g->global.name_size < sizeof name) {
    memcpy(name, g->global.name, g->global.name_size);
    name[g->global.name_size] = 0;
    xt_dtype dtype = xt_dtype_from_name(name);
    if (dtype != XT_DTYPE_COUNT) {
      g->kind = XT_NODE_DTYPE;
      g->dtype = dtype;
      return XT_STATUS_ok;
    }
  }
  if (m->strict && !allowed(g))
    return xt_error_at(
        m->error, XT_STATUS_forbidden, m->at,
        "strict: the file names %.*s.%.*s, which torch's weights_only refuses; without strict: true it is read as an "
        "inert object",
        (int)g->global.module_size, g->global.module, (int)g->global.name_size, g->global.name);
  return XT_STATUS_ok;
}

/* ---- Storages ---- */

xt_status xt_meaning_persistent(xt_meaning *m, const xt_node *id, xt_node **out) {
  if (id->kind != XT_NODE_TUPLE || id->list.count < 5 || !xt_node_is_text(id->list.items[0], "storage", 7))
    return corrupt(m, "a persistent id is no storage");
  const xt_node *class = id->list.items[1], *key = id->list.items[2], *location = id->list.items[3],
                *numel = id->list.items[4];
  xt_dtype dtype = storage_dtype(class);
  if (dtype == XT_DTYPE_COUNT) return corrupt(m, "a storage has an unknown class");
  if (key->kind != XT_NODE_TEXT || location->kind != XT_NODE_TEXT || numel->kind != XT_NODE_INT)
    return corrupt(m, "a storage's key, location or size has the wrong type");
  int64_t bytes;
  if (numel->integer < 0 || __builtin_mul_overflow(numel->integer, (int64_t)xt_dtype_get(dtype)->size, &bytes))
    return corrupt(m, "a storage's size is negative or too large");

  bool is_new;
  size_t *place = xt_table_put(&m->by_key, key->text.data, key->text.size, &is_new);
  if (!place) return no_memory(m);
  if (is_new) {
    if (m->storage_count == m->storage_room) {
      size_t room = m->storage_room ? 2 * m->storage_room : 64;
      xt_storage *grown = realloc(m->storages, room * sizeof *grown);
      if (!grown) return no_memory(m);
      m->storages = grown;
      m->storage_room = room;
    }
    *place = m->storage_count;
    m->storages[m->storage_count++] =
        (xt_storage){key->text.data, key->text.size, location->text.data, location->text.size,
                     dtype,          dtype,          numel->integer,      (uint64_t)bytes};
  } else if (m->storages[*place].bytes != (uint64_t)bytes) {
    return corrupt(m, "one storage has two sizes");
  }
  *out = xt_node_new(m->arena, XT_NODE_STORAGE);
  if (!*out) return no_memory(m);
  (*out)->storage = (uint32_t)*place;
  return XT_STATUS_ok;
}

/* ---- Tensors ---- */

static const xt_node *arg(const xt_node *args, size_t i) { return i < args->list.count ? args->list.items[i] : NULL; }

static bool get_flag(const xt_node *node, bool *out) {
  if (node && node->kind == XT_NODE_BOOL) *out = node->boolean;
  return !node || node->kind == XT_NODE_BOOL || node->kind == XT_NODE_NONE;
}

static xt_status get_dims(xt_meaning *m, const xt_node *node, const char *what, uint32_t *ndim, int64_t **out) {
  if (!node || node->kind != XT_NODE_TUPLE) return corrupt(m, what);
  if (node->list.count > 64) return corrupt(m, "a tensor has more than 64 dimensions");
  *ndim = (uint32_t)node->list.count;
  *out = xt_arena_alloc(m->arena, node->list.count, sizeof **out);
  if (!*out) return no_memory(m);
  for (size_t i = 0; i < node->list.count; i++) {
    const xt_node *dim = node->list.items[i];
    if (dim->kind != XT_NODE_INT || dim->integer < 0) return corrupt(m, what);
    (*out)[i] = dim->integer;
  }
  return XT_STATUS_ok;
}

/* No tensor sees outside its storage, and none claims more logical bytes than the limit. */
static xt_status check_view(xt_meaning *m, const xt_node_tensor *t) {
  int64_t last = t->offset, elements = 1, step, bytes;
  int64_t item = (int64_t)xt_dtype_get(t->dtype)->size;
  bool empty = false;
  for (uint32_t d = 0; d < t->ndim; d++) {
    int64_t size = t->sizes[d] ? t->sizes[d] : 1; /* an empty one must not overflow either */
    empty |= t->sizes[d] == 0;
    if (__builtin_mul_overflow(size - 1, t->strides[d], &step) || __builtin_add_overflow(last, step, &last) ||
        __builtin_mul_overflow(elements, size, &elements))
      return corrupt(m, "a tensor's shape overflows");
  }
  if (__builtin_mul_overflow(elements, item, &bytes) || __builtin_mul_overflow(last, item, &step))
    return corrupt(m, "a tensor's shape overflows");
  if (!empty && (uint64_t)bytes > m->max_tensor_bytes)
    return xt_error_at(m->error, XT_STATUS_limit, m->at, "a tensor of %lld bytes; the limit tensor_bytes is %llu",
                       (long long)bytes, (unsigned long long)m->max_tensor_bytes);
  if (t->storage == XT_NO_STORAGE) return XT_STATUS_ok;
  int64_t room = (int64_t)(m->storages[t->storage].bytes / (uint64_t)item);
  /* An empty one may begin anywhere, as slices of slices do: nothing is ever read there. */
  if (!empty && last >= room) return corrupt(m, "a tensor reaches past the end of its storage");
  return XT_STATUS_ok;
}

static xt_status get_metadata(xt_meaning *m, const xt_node *node, xt_node_tensor *t) {
  if (!node || node->kind != XT_NODE_DICT) return XT_STATUS_ok;
  if (node->list.count > 32) return corrupt(m, "a tensor's metadata is no small dict"); /* it may be shared by many */
  for (size_t i = 0; i + 1 < node->list.count; i += 2) {
    const xt_node *key = node->list.items[i], *value = node->list.items[i + 1];
    if (xt_node_is_text(key, "conj", 4) && !get_flag(value, &t->conj))
      return corrupt(m, "a tensor's conj bit is no boolean");
    if (xt_node_is_text(key, "neg", 3) && !get_flag(value, &t->neg))
      return corrupt(m, "a tensor's neg bit is no boolean");
  }
  return XT_STATUS_ok;
}

static xt_node *new_tensor(xt_meaning *m) {
  xt_node *node = xt_node_new(m->arena, XT_NODE_TENSOR);
  if (node) node->tensor = xt_arena_alloc(m->arena, 1, sizeof *node->tensor);
  return node && node->tensor ? node : NULL;
}

/* _rebuild_tensor(storage, offset, size, stride) · v2 adds requires_grad, hooks[, metadata] · v3 also dtype[, metadata]
 */
static xt_status rebuild_tensor(xt_meaning *m, const xt_node *args, int version, xt_node **out) {
  const xt_node *storage = arg(args, 0), *offset = arg(args, 1), *dtype = version == 3 ? arg(args, 6) : NULL;
  if (!storage || storage->kind != XT_NODE_STORAGE || !offset || offset->kind != XT_NODE_INT || offset->integer < 0)
    return corrupt(m, "a tensor has no storage or no offset");
  if (version == 3 && (!dtype || dtype->kind != XT_NODE_DTYPE)) return corrupt(m, "a tensor has no dtype");
  *out = new_tensor(m);
  if (!*out) return no_memory(m);
  xt_node_tensor *t = (*out)->tensor;
  t->storage = storage->storage;
  t->dtype = dtype ? dtype->dtype : m->storages[t->storage].dtype;
  if (dtype) m->storages[t->storage].element = dtype->dtype;
  t->offset = offset->integer;
  uint32_t strides;
  xt_status status = get_dims(m, arg(args, 2), "a tensor's size is no tuple of sizes", &t->ndim, &t->sizes);
  if (status == XT_STATUS_ok)
    status = get_dims(m, arg(args, 3), "a tensor's stride is no tuple of steps", &strides, &t->strides);
  if (status != XT_STATUS_ok) return status;
  if (strides != t->ndim) return corrupt(m, "a tensor has more strides than sizes, or fewer");
  if (version > 1 && !get_flag(arg(args, 4), &t->requires_grad)) return corrupt(m, "requires_grad is no boolean");
  status = get_metadata(m, arg(args, version == 3 ? 7 : 6), t);
  return status == XT_STATUS_ok ? check_view(m, t) : status;
}

static xt_status rebuild_meta(xt_meaning *m, const xt_node *args, xt_node **out) {
  const xt_node *dtype = arg(args, 0);
  uint32_t strides;
  if (!dtype || dtype->kind != XT_NODE_DTYPE) return corrupt(m, "a tensor has no dtype");
  *out = new_tensor(m);
  if (!*out) return no_memory(m);
  xt_node_tensor *t = (*out)->tensor;
  t->storage = XT_NO_STORAGE;
  t->dtype = dtype->dtype;
  xt_status status = get_dims(m, arg(args, 1), "a tensor's size is no tuple of sizes", &t->ndim, &t->sizes);
  if (status == XT_STATUS_ok)
    status = get_dims(m, arg(args, 2), "a tensor's stride is no tuple of steps", &strides, &t->strides);
  if (status != XT_STATUS_ok) return status;
  if (strides != t->ndim || !get_flag(arg(args, 3), &t->requires_grad)) return corrupt(m, "a meta tensor is malformed");
  return check_view(m, t);
}

static xt_status rebuild_parameter(xt_meaning *m, const xt_node *args, xt_node **out) {
  const xt_node *data = arg(args, 0);
  if (!data || data->kind != XT_NODE_TENSOR) return XT_STATUS_ok; /* of a kind that stays an inert object */
  *out = new_tensor(m);
  if (!*out) return no_memory(m);
  *(*out)->tensor = *data->tensor;
  (*out)->tensor->parameter = true;
  return get_flag(arg(args, 1), &(*out)->tensor->requires_grad) ? XT_STATUS_ok
                                                                : corrupt(m, "requires_grad is no boolean");
}

/* ---- Tensors made of tensors ---- */

static bool get_number(const xt_node *node, double *out) {
  if (node && node->kind == XT_NODE_FLOAT) *out = node->number;
  else if (node && node->kind == XT_NODE_INT) *out = (double)node->integer;
  else return false;
  return true;
}

/* torch.serialization._get_layout('torch.sparse_coo') */
static bool get_layout(const xt_node *node, xt_layout *out) {
  static const struct {
    const char *name;
    xt_layout layout;
  } layouts[] = {{"torch.sparse_coo", XT_LAYOUT_COO},
                 {"torch.sparse_csr", XT_LAYOUT_CSR},
                 {"torch.sparse_csc", XT_LAYOUT_CSC},
                 {"torch.sparse_bsr", XT_LAYOUT_BSR},
                 {"torch.sparse_bsc", XT_LAYOUT_BSC}};
  if (!node || node->kind != XT_NODE_OBJECT ||
      !xt_node_is_global(node->object->callable, "torch.serialization", "_get_layout") ||
      node->object->args->list.count != 1)
    return false;
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
    if (xt_node_is_text(node->object->args->list.items[0], layouts[i].name, strlen(layouts[i].name)))
      return *out = layouts[i].layout, true;
  return false;
}

static const xt_node_tensor *plain_part(const xt_node *node) {
  bool plain = node && node->kind == XT_NODE_TENSOR && node->tensor->layout == XT_LAYOUT_STRIDED &&
               !node->tensor->quantized && node->tensor->storage != XT_NO_STORAGE;
  return plain ? node->tensor : NULL;
}

/* (layout, (indices, values, size[, coalesced])) or (layout, (compressed, plain, values, size)) */
static xt_status rebuild_sparse(xt_meaning *m, const xt_node *args, xt_node **out) {
  const xt_node *data = arg(args, 1);
  xt_layout layout;
  if (!get_layout(arg(args, 0), &layout) || !data || data->kind != XT_NODE_TUPLE) return XT_STATUS_ok;
  uint8_t parts = layout == XT_LAYOUT_COO ? 2 : 3;
  *out = new_tensor(m);
  xt_node_parts *more = xt_arena_alloc(m->arena, 1, sizeof *more);
  if (!*out || !more) return no_memory(m);
  xt_node_tensor *t = (*out)->tensor;
  t->more = more;
  t->storage = XT_NO_STORAGE;
  t->layout = (uint8_t)layout;
  t->part_count = parts;
  for (uint32_t i = 0; i < parts; i++)
    if (!(more->parts[i] = plain_part(arg(data, i)))) return corrupt(m, "a sparse tensor's parts are no tensors");
  t->dtype = more->parts[parts - 1]->dtype;
  xt_status status = get_dims(m, arg(data, parts), "a tensor's size is no tuple of sizes", &t->ndim, &t->sizes);
  if (status != XT_STATUS_ok) return status;
  t->strides = xt_arena_alloc(m->arena, t->ndim, sizeof *t->strides); /* zeros: it has none */
  int64_t elements = 1;
  for (uint32_t d = 0; d < t->ndim; d++)
    if (t->sizes[d] && __builtin_mul_overflow(elements, t->sizes[d], &elements))
      return corrupt(m, "a tensor's shape overflows");
  return t->strides ? XT_STATUS_ok : no_memory(m);
}

/* (storage, offset, size, stride, (scheme, scale, zero_point) or (scheme, scales, zero_points, axis), requires_grad,
 * hooks) */
static xt_status rebuild_quantized(xt_meaning *m, const xt_node *args, xt_node **out) {
  const xt_node *q = arg(args, 4);
  xt_node *made = NULL;
  if (!q || q->kind != XT_NODE_TUPLE || q->list.count < 3) return corrupt(m, "a quantized tensor has no parameters");
  bool channels = q->list.count == 4 && xt_node_is_global(arg(q, 0), "torch", "per_channel_affine");
  if (!channels && !xt_node_is_global(arg(q, 0), "torch", "per_tensor_affine")) return XT_STATUS_ok;
  xt_status status = rebuild_tensor(m, args, 1, &made);
  if (status != XT_STATUS_ok) return status;
  xt_node_tensor *t = made->tensor;
  if (t->dtype != XT_qint8 && t->dtype != XT_quint8 && t->dtype != XT_qint32)
    return XT_STATUS_ok; /* packed below a byte */
  const xt_node *scale = arg(q, 1), *zero = arg(q, 2), *axis = arg(q, 3);
  xt_node_parts *more = xt_arena_alloc(m->arena, 1, sizeof *more);
  if (!more) return no_memory(m);
  t->quantized = true;
  t->more = more;
  if (channels) {
    t->part_count = 2;
    more->parts[0] = plain_part(scale);
    more->parts[1] = plain_part(zero);
    if (!more->parts[0] || !more->parts[1] || !axis || axis->kind != XT_NODE_INT || axis->integer < 0 ||
        axis->integer >= t->ndim)
      return corrupt(m, "a quantized tensor's channels are malformed");
    for (int i = 0; i < 2; i++) /* one for each slice along the axis: LibTorch does not look */
      if (more->parts[i]->ndim != 1 || more->parts[i]->sizes[0] != t->sizes[axis->integer])
        return corrupt(m, "a quantized tensor's channels are not as many as its slices");
    more->axis = axis->integer;
  } else if (!get_number(scale, &more->scale) || zero->kind != XT_NODE_INT) {
    return corrupt(m, "a quantized tensor's scale or zero point is no number");
  } else {
    more->zero_point = zero->integer;
  }
  if (!get_flag(arg(args, 5), &t->requires_grad)) return corrupt(m, "requires_grad is no boolean");
  *out = made;
  return XT_STATUS_ok;
}

/* ---- Plain Python types ---- */

/* _codecs.encode(text, 'latin1'): how protocol 2 writes bytes. */
static xt_status latin1(xt_meaning *m, const xt_node *args, xt_node **out) {
  const xt_node *text = arg(args, 0), *codec = arg(args, 1);
  if (!text || text->kind != XT_NODE_TEXT || !codec ||
      !(xt_node_is_text(codec, "latin1", 6) || xt_node_is_text(codec, "latin-1", 7)))
    return XT_STATUS_ok;
  uint8_t *bytes = xt_arena_alloc(m->arena, text->text.size, 1);
  *out = xt_node_new(m->arena, XT_NODE_BYTES);
  if (!bytes || !*out) return no_memory(m);
  const uint8_t *in = (const uint8_t *)text->text.data;
  size_t size = 0;
  for (size_t i = 0; i < text->text.size; i++, size++) {
    if (in[i] >= 0xC4) return corrupt(m, "bytes hold a character above 255");
    bytes[size] = in[i] < 0x80 ? in[i] : (uint8_t)(in[i] << 6 | (in[i + 1] & 0x3F));
    if (in[i] >= 0x80) i++;
  }
  (*out)->text.data = (const char *)bytes;
  (*out)->text.size = size;
  return XT_STATUS_ok;
}

static xt_status to_bytearray(xt_meaning *m, const xt_node *args, xt_node **out) {
  const xt_node *bytes = arg(args, 0);
  if (bytes && bytes->kind != XT_NODE_BYTES) return XT_STATUS_ok;
  *out = xt_node_new(m->arena, XT_NODE_BYTEARRAY);
  if (!*out) return no_memory(m);
  if (bytes) (*out)->text = bytes->text;
  return XT_STATUS_ok;
}

static xt_status to_complex(xt_meaning *m, const xt_node *args, xt_node **out) {
  double re, im;
  if (args->list.count != 2 || !get_number(arg(args, 0), &re) || !get_number(arg(args, 1), &im)) return XT_STATUS_ok;
  *out = xt_node_new(m->arena, XT_NODE_COMPLEX);
  if (!*out) return no_memory(m);
  (*out)->complex.re = re, (*out)->complex.im = im;
  return XT_STATUS_ok;
}

/* Items of the first argument in a container of another kind. */
static xt_status to_items(xt_meaning *m, const xt_node *args, xt_node_kind kind, xt_node **out) {
  const xt_node *items = arg(args, 0);
  bool listed = items && (items->kind == XT_NODE_LIST || items->kind == XT_NODE_TUPLE);
  if (args->list.count > 1 || (items && !listed)) return XT_STATUS_ok;
  *out = xt_node_new(m->arena, kind);
  if (!*out) return no_memory(m);
  for (size_t i = 0; items && i < items->list.count; i++)
    if (!xt_node_append(m->arena, *out, items->list.items[i])) return no_memory(m);
  return XT_STATUS_ok;
}

/* OrderedDict(), OrderedDict([(k, v), …]), defaultdict(factory), Counter({…}) */
static xt_status to_dict(xt_meaning *m, const xt_node *args, size_t data, xt_node **out) {
  const xt_node *from = arg(args, data);
  *out = xt_node_new(m->arena, XT_NODE_DICT);
  if (!*out) return no_memory(m);
  for (size_t i = 0; from && i < (from->kind == XT_NODE_DICT || from->kind == XT_NODE_LIST ? from->list.count : 0);
       i++) {
    xt_node *item = from->list.items[i];
    bool pair = from->kind == XT_NODE_LIST;
    if (pair && ((item->kind != XT_NODE_TUPLE && item->kind != XT_NODE_LIST) || item->list.count != 2))
      return corrupt(m, "a dict is made of what are no pairs");
    for (size_t k = 0; k < (pair ? 2 : 1); k++)
      if (!xt_node_append(m->arena, *out, pair ? item->list.items[k] : item)) return no_memory(m);
  }
  return XT_STATUS_ok;
}

static xt_status to_device(xt_meaning *m, const xt_node *args, xt_node **out) {
  const xt_node *type = arg(args, 0), *index = arg(args, 1);
  if (!type || type->kind != XT_NODE_TEXT || (index && index->kind != XT_NODE_INT)) return XT_STATUS_ok;
  *out = xt_node_new(m->arena, XT_NODE_DEVICE);
  if (!*out) return no_memory(m);
  (*out)->device.type = type->text.data;
  (*out)->device.type_size = type->text.size;
  (*out)->device.index = index ? index->integer : -1;
  return XT_STATUS_ok;
}

xt_status xt_meaning_reduce(xt_meaning *m, const xt_node *callable, xt_node *args, xt_node **out) {
  if (callable->kind != XT_NODE_GLOBAL) return XT_STATUS_ok;
  const char *module = callable->global.module, *name = callable->global.name;
  size_t module_size = callable->global.module_size, name_size = callable->global.name_size;
  if (equals(module, module_size, "torch._utils")) {
    if (equals(name, name_size, "_rebuild_tensor_v2")) return rebuild_tensor(m, args, 2, out);
    if (equals(name, name_size, "_rebuild_tensor_v3")) return rebuild_tensor(m, args, 3, out);
    if (equals(name, name_size, "_rebuild_tensor")) return rebuild_tensor(m, args, 1, out);
    if (equals(name, name_size, "_rebuild_parameter")) return rebuild_parameter(m, args, out);
    if (equals(name, name_size, "_rebuild_meta_tensor_no_storage")) return rebuild_meta(m, args, out);
    if (equals(name, name_size, "_rebuild_sparse_tensor") || equals(name, name_size, "_rebuild_sparse_csr_tensor"))
      return rebuild_sparse(m, args, out);
    if (equals(name, name_size, "_rebuild_qtensor")) return rebuild_quantized(m, args, out);
  } else if (equals(module, module_size, "collections")) {
    if (equals(name, name_size, "OrderedDict") || equals(name, name_size, "Counter")) return to_dict(m, args, 0, out);
    if (equals(name, name_size, "defaultdict")) return to_dict(m, args, 1, out);
  } else if (equals(module, module_size, "builtins") || equals(module, module_size, "__builtin__")) {
    if (equals(name, name_size, "set")) return to_items(m, args, XT_NODE_SET, out);
    if (equals(name, name_size, "frozenset")) return to_items(m, args, XT_NODE_FROZENSET, out);
    if (equals(name, name_size, "complex")) return to_complex(m, args, out);
    if (equals(name, name_size, "bytearray")) return to_bytearray(m, args, out);
  } else if (equals(module, module_size, "torch")) {
    if (equals(name, name_size, "Size")) return to_items(m, args, XT_NODE_TUPLE, out);
    if (equals(name, name_size, "device")) return to_device(m, args, out);
  } else if (equals(module, module_size, "_codecs") && equals(name, name_size, "encode")) {
    return latin1(m, args, out);
  }
  return XT_STATUS_ok;
}
