#include <stdarg.h>
#include <stdio.h>

#include "core/base/printable.h"
#include "core/pickle/rebuild_internal.h"

xt_status xt_rebuild_corrupt(xt_rebuild *r, const char *format, ...) {
  char reason[512];
  va_list args;
  va_start(args, format);
  vsnprintf(reason, sizeof reason, format, args);
  va_end(args);
  return xt_error_at(r->error, XT_STATUS_corrupt, r->at, "invalid pickle: %s", reason);
}

void xt_rebuild_free(xt_rebuild *rebuild) { xt_table_free(&rebuild->labels); }

/* ---- Names ---- */

bool xt_rebuild_in_list(const char *text, size_t size, const char *const *list) {
  for (; *list; list++)
    if (xt_text_equals(text, size, *list)) return true;
  return false;
}

xt_dtype xt_rebuild_storage_dtype(const xt_node *class) {
  static const char *const modules[] = {"torch",        "torch.cuda",        "torch.storage",
                                        "torch.sparse", "torch.cuda.sparse", NULL};
  static const char *const untyped[] = {"UntypedStorage", "_UntypedStorage", NULL};
  if (class->kind != XT_NODE_GLOBAL || !xt_rebuild_in_list(class->global.module, class->global.module_size, modules))
    return XT_DTYPE_COUNT;
  if (xt_rebuild_in_list(class->global.name, class->global.name_size, untyped)) return XT_uint8;
  return xt_dtype_from_storage(class->global.name, class->global.name_size);
}

xt_status xt_rebuild_global(xt_rebuild *r, xt_node *g) {
  char name[64];
  bool lower = g->global.name_size && *g->global.name >= 'a' && *g->global.name <= 'z'; /* like all dtypes */
  if (lower && xt_text_equals(g->global.module, g->global.module_size, "torch") && g->global.name_size < sizeof name) {
    memcpy(name, g->global.name, g->global.name_size);
    name[g->global.name_size] = 0;
    xt_dtype dtype = xt_dtype_from_name(name);
    if (dtype != XT_DTYPE_COUNT) {
      g->kind = XT_NODE_DTYPE;
      g->dtype = dtype;
      return XT_STATUS_ok;
    }
  }
  if (r->strict && !xt_rebuild_weights_only(g))
    return xt_error_at(r->error, XT_STATUS_forbidden, r->at,
                       "strict: the file uses %s.%s, which torch's weights_only unpickler refuses; load it without "
                       "strict: true to get an inert object instead",
                       xt_printable_text(g->global.module, g->global.module_size).text,
                       xt_printable_text(g->global.name, g->global.name_size).text);
  return XT_STATUS_ok;
}

/* ---- Storages ---- */

xt_status xt_rebuild_add_inline(xt_rebuild *r, xt_dtype dtype, const char *data, size_t size, bool big_endian,
                                uint32_t *index) {
  char *text = xt_arena_alloc(r->arena, 32, 1);
  if (!text) return xt_rebuild_no_memory(r);
  size_t key_size = (size_t)snprintf(text, 32, "inline/%zu", r->storages->count);
  int64_t numel = (int64_t)(size / xt_dtype_get(dtype)->size);
  xt_status status = xt_storages_add(r->storages, text, key_size, dtype, numel, r->at, index, r->error);
  if (status != XT_STATUS_ok) return status;
  r->storages->list[*index].data = (const uint8_t *)data;
  r->storages->list[*index].big_endian = big_endian;
  return status;
}

/* Adds the prefix to the key of a storage. Returns false if there is not enough memory. */
static bool prefix_key(xt_rebuild *r, const xt_node *key, const char **text, size_t *size) {
  size_t prefix = r->key_prefix ? strlen(r->key_prefix) : 0;
  *text = key->text.data;
  *size = prefix + key->text.size;
  if (!prefix) return true;
  char *full = xt_arena_alloc(r->arena, *size, 1);
  if (!full) return false;
  memcpy(full, r->key_prefix, prefix);
  memcpy(full + prefix, key->text.data, key->text.size);
  *text = full;
  return true;
}

/* Reads the view (key, offset, count) of a storage, which files of torch up to 0.3 contain. Returns false if it is not
 * inside the storage. */
static bool get_view(const xt_node *view, int64_t numel, xt_node *storage) {
  if (!view || view->kind == XT_NODE_NONE) return true;
  const xt_node *start = view->kind == XT_NODE_TUPLE ? xt_node_arg(view, 1) : NULL;
  const xt_node *count = start ? xt_node_arg(view, 2) : NULL;
  if (!count || start->kind != XT_NODE_INT || count->kind != XT_NODE_INT || start->integer < 0 || count->integer < 0 ||
      start->integer > numel || count->integer > numel - start->integer)
    return false;
  storage->storage.start = start->integer;
  storage->storage.count = count->integer;
  return true;
}

static bool is_untyped(const xt_node *class) {
  return xt_text_equals(class->global.name, class->global.name_size, "UntypedStorage") ||
         xt_text_equals(class->global.name, class->global.name_size, "_UntypedStorage");
}

enum { MAX_KEY = 256 }; /* torch writes short numbers and locations like "cuda:0" */

static xt_status storage_id(xt_rebuild *r, const xt_node *id, xt_node **out) {
  if (id->kind != XT_NODE_TUPLE || id->list.count < 5 || !xt_node_is_text(id->list.items[0], "storage", 7))
    return xt_rebuild_corrupt(r, "persistent id is not a storage tuple");
  const xt_node *class = id->list.items[1], *key = id->list.items[2], *location = id->list.items[3],
                *numel = id->list.items[4];
  xt_dtype dtype = xt_rebuild_storage_dtype(class);
  if (dtype == XT_DTYPE_COUNT) return xt_rebuild_corrupt(r, "unknown storage class");
  if (r->strict && r->ids == XT_IDS_LEGACY && is_untyped(class))
    return xt_error_at(r->error, XT_STATUS_forbidden, r->at,
                       "strict: torch's weights_only unpickler cannot read untyped storages of legacy files; load it "
                       "without strict: true");
  if (key->kind != XT_NODE_TEXT || location->kind != XT_NODE_TEXT || numel->kind != XT_NODE_INT)
    return xt_rebuild_corrupt(r, "key, location or size of a storage has the wrong type");
  if (key->text.size > MAX_KEY || location->text.size > MAX_KEY)
    return xt_rebuild_corrupt(r, "key or location of a storage is longer than %d bytes", MAX_KEY);
  const char *full;
  size_t full_size;
  bool is_new;
  uint32_t index;
  int64_t bytes;
  if (!prefix_key(r, key, &full, &full_size)) return xt_rebuild_no_memory(r);
  size_t *slot = xt_table_put(&r->storages->by_key, full, full_size, &is_new);
  if (!slot) return xt_rebuild_no_memory(r);
  if (is_new) {
    xt_status status = xt_storages_add(r->storages, full, full_size, dtype, numel->integer, r->at, &index, r->error);
    if (status != XT_STATUS_ok) return status;
    r->storages->list[index].location = location->text.data;
    r->storages->list[index].location_size = location->text.size;
    *slot = index;
  } else if (__builtin_mul_overflow(numel->integer, (int64_t)xt_dtype_get(dtype)->size, &bytes) ||
             r->storages->list[*slot].bytes != (uint64_t)bytes) {
    return xt_rebuild_corrupt(r, "storage %s is used with two sizes", xt_printable_text(full, full_size).text);
  }
  *out = xt_node_new(r->arena, XT_NODE_STORAGE);
  if (!*out) return xt_rebuild_no_memory(r);
  (*out)->storage.index = (uint32_t)*slot;
  (*out)->storage.count = -1;
  if (r->ids == XT_IDS_LEGACY && !get_view(xt_node_arg(id, 5), numel->integer, *out))
    return xt_rebuild_corrupt(r, "view extends past its storage %s", xt_printable_text(full, full_size).text);
  return XT_STATUS_ok;
}

xt_status xt_rebuild_persistent(xt_rebuild *r, xt_node *id, xt_node **out) {
  if (r->ids == XT_IDS_NONE)
    return xt_rebuild_corrupt(r,
                              "it refers to storages outside the pickle; torch.save wrote it as part of another file, "
                              "load that file instead");
  if (r->ids == XT_IDS_LABELS) {
    if (id->kind == XT_NODE_TUPLE && id->list.count) return *out = id->list.items[0], XT_STATUS_ok; /* (class, …) */
    size_t *slot = id->kind == XT_NODE_TEXT ? xt_table_get(&r->labels, id->text.data, id->text.size) : NULL;
    if (!slot) return xt_rebuild_corrupt(r, "persistent id is not the key of a tensor or storage");
    *out = (xt_node *)*slot;
    return XT_STATUS_ok;
  }
  /* ('module', class, file, source) */
  if (r->ids == XT_IDS_LEGACY && id->kind == XT_NODE_TUPLE && id->list.count >= 2 &&
      xt_node_is_text(id->list.items[0], "module", 6))
    return *out = id->list.items[1], XT_STATUS_ok;
  return storage_id(r, id, out);
}

/* ---- Calls ---- */

static xt_status reduce_torch(xt_rebuild *r, const char *name, size_t size, xt_node *args, xt_node **out) {
  if (xt_text_equals(name, size, "_rebuild_tensor_v2")) return xt_rebuild_tensor(r, args, 2, out);
  if (xt_text_equals(name, size, "_rebuild_tensor_v3")) return xt_rebuild_tensor(r, args, 3, out);
  if (xt_text_equals(name, size, "_rebuild_tensor")) return xt_rebuild_tensor(r, args, 1, out);
  if (xt_text_equals(name, size, "_rebuild_parameter") || xt_text_equals(name, size, "_rebuild_parameter_with_state"))
    return xt_rebuild_parameter(r, args, out);
  if (xt_text_equals(name, size, "_rebuild_meta_tensor_no_storage")) return xt_rebuild_meta(r, args, out);
  if (xt_text_equals(name, size, "_rebuild_sparse_tensor") || xt_text_equals(name, size, "_rebuild_sparse_csr_tensor"))
    return xt_rebuild_sparse(r, args, out);
  if (xt_text_equals(name, size, "_rebuild_qtensor")) return xt_rebuild_quantized(r, args, out);
  if (xt_text_equals(name, size, "_rebuild_device_tensor_from_numpy") ||
      xt_text_equals(name, size, "_rebuild_device_tensor_from_cpu_tensor") ||
      xt_text_equals(name, size, "_rebuild_xla_tensor"))
    return xt_rebuild_device_tensor(r, args, out);
  return XT_STATUS_ok;
}

xt_status xt_rebuild_reduce(xt_rebuild *r, xt_node *callable, xt_node *args, xt_node **out) {
  if (callable->kind != XT_NODE_GLOBAL) return XT_STATUS_ok;
  const char *module = callable->global.module, *name = callable->global.name;
  size_t module_size = callable->global.module_size, size = callable->global.name_size;
  if (xt_text_equals(module, module_size, "torch._utils")) return reduce_torch(r, name, size, args, out);
  if (xt_text_equals(module, module_size, "collections")) {
    if (xt_text_equals(name, size, "OrderedDict") || xt_text_equals(name, size, "Counter"))
      return xt_rebuild_dict(r, args, 0, out);
    if (xt_text_equals(name, size, "defaultdict")) return xt_rebuild_dict(r, args, 1, out);
  } else if (xt_text_equals(module, module_size, "builtins") || xt_text_equals(module, module_size, "__builtin__")) {
    if (xt_text_equals(name, size, "set")) return xt_rebuild_items(r, args, XT_NODE_SET, out);
    if (xt_text_equals(name, size, "frozenset")) return xt_rebuild_items(r, args, XT_NODE_FROZENSET, out);
    if (xt_text_equals(name, size, "complex")) return xt_rebuild_complex(r, args, out);
    if (xt_text_equals(name, size, "bytearray")) return xt_rebuild_bytearray(r, args, XT_NODE_BYTEARRAY, out);
    /* protocol 2 writes empty bytes as bytes() */
    if (xt_text_equals(name, size, "bytes") && !args->list.count)
      return xt_rebuild_bytearray(r, args, XT_NODE_BYTES, out);
  } else if (xt_text_equals(module, module_size, "torch")) {
    if (xt_text_equals(name, size, "Size")) return xt_rebuild_items(r, args, XT_NODE_TUPLE, out);
    if (xt_text_equals(name, size, "device")) return xt_rebuild_device(r, args, out);
  } else if (xt_text_equals(module, module_size, "_codecs") && xt_text_equals(name, size, "encode")) {
    return xt_rebuild_latin1(r, args, out);
  } else if (xt_node_is_global(callable, "torch._tensor", "_rebuild_from_type_v2") ||
             xt_node_is_global(callable, "torch.tensor", "_rebuild_from_type_v2")) {
    return xt_rebuild_from_type(r, args, out);
  } else if (xt_node_is_global(callable, "torch.storage", "_load_from_bytes")) {
    return xt_rebuild_nested(r, args, out);
  } else if (xt_node_is_global(callable, "torch.nn.parameter", "Parameter") ||
             xt_node_is_global(callable, "torch.autograd.variable", "Variable")) {
    return xt_rebuild_parameter(r, args, out); /* the oldest form; requires_grad is set by BUILD */
  } else if (xt_rebuild_is_numpy(callable)) {
    return xt_rebuild_numpy(r, callable, args, out);
  }
  return XT_STATUS_ok;
}

xt_status xt_rebuild_build(xt_rebuild *r, xt_node *target, xt_node *state, bool *done) {
  *done = false;
  xt_status status = xt_rebuild_tensor_state(r, target, state, done);
  if (status == XT_STATUS_ok && !*done) status = xt_rebuild_numpy_state(r, target, state, done);
  return status;
}
