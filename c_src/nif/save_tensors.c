#include "nif/save_tensors.h"

#include <stdlib.h>
#include <string.h>

#include "core/pickle/node.h"
#include "core/pickle/pickler.h"
#include "nif/tensor.h"

static xt_status no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while planning the save");
}

/* ---- Growing arrays ---- */

static void *grow(void *list, size_t count, size_t *room, size_t size) {
  if (count < *room) return list;
  size_t wanted = *room ? 2 * *room : 16;
  void *grown = realloc(list, wanted * size);
  if (grown) *room = wanted;
  return grown;
}

static xt_save_view *new_view(xt_save_tensors *s) {
  void *grown = grow(s->views, s->view_count, &s->view_room, sizeof *s->views);
  if (!grown) return NULL;
  s->views = grown;
  xt_save_view *view = &s->views[s->view_count++];
  memset(view, 0, sizeof *view);
  return view;
}

static bool keep_other(xt_save_tensors *s, xt_tensor *tensor) {
  void *grown = grow(s->others, s->other_count, &s->other_room, sizeof *s->others);
  if (!grown) return false;
  s->others = grown;
  s->others[s->other_count++] = tensor;
  return true;
}

/* ---- The views of a tensor ---- */

/* Takes ownership of the reference to the handle. */
static xt_status add_view(xt_save_tensors *s, xt_save_tensor *t, xt_tensor *handle, xt_error *error) {
  xt_save_view *view = new_view(s);
  if (!view) {
    xt_tensor_drop(handle);
    return no_memory(error);
  }
  const xt_tensor_info *info = &handle->info;
  size_t item = xt_dtype_get(info->dtype)->size;
  view->handle = handle;
  view->dtype = info->dtype;
  view->device = info->device;
  view->staged = !info->plain || info->device.type != XT_DEVICE_CPU;
  t->views[t->view_count++] = s->view_count - 1;
  if (view->staged) {
    view->bytes = (uint64_t)info->numel * item;
    return XT_STATUS_ok;
  }
  const void *base = info->data;
  size_t bytes = info->span;
  if (!s->compact && info->storage) base = info->storage, bytes = info->storage_bytes;
  if ((uintptr_t)base > (uintptr_t)info->data || bytes % item) base = info->data, bytes = info->span;
  view->data = (uintptr_t)info->data;
  view->base = (uintptr_t)base;
  view->bytes = bytes / item * item;
  if (!info->numel) view->data = view->base; /* the address of an empty tensor can be anywhere */
  return XT_STATUS_ok;
}

/* Calls an operator with one argument and one result. */
static xt_status call_op(const char *name, xt_tensor *tensor, xt_value *out, xt_error *error) {
  xt_arena arena = {NULL};
  xt_value arg = {.kind = XT_VALUE_TENSOR, .tensor = tensor}, *results;
  xt_op_call op = {.name = name, .args = &arg, .arg_count = 1};
  size_t count = 0;
  xt_status status = xt_torch->op(&op, &arena, &results, &count, error);
  if (status == XT_STATUS_ok && count) *out = results[0];
  xt_arena_free(&arena);
  return status;
}

static xt_status add_part(xt_save_tensors *s, xt_save_tensor *t, const char *name, xt_error *error) {
  xt_value part = {.kind = XT_VALUE_NIL};
  xt_status status = call_op(name, t->tensor, &part, error);
  return status == XT_STATUS_ok ? add_view(s, t, part.tensor, error) : status;
}

static xt_status add_sparse(xt_save_tensors *s, xt_save_tensor *t, xt_error *error) {
  static const char *const coo[] = {"aten::_indices", "aten::_values", NULL};
  static const char *const rows[] = {"aten::crow_indices", "aten::col_indices", "aten::values", NULL};
  static const char *const columns[] = {"aten::ccol_indices", "aten::row_indices", "aten::values", NULL};
  uint8_t layout = t->tensor->info.layout;
  const char *const *parts = layout == XT_LAYOUT_COO                              ? coo
                             : layout == XT_LAYOUT_CSR || layout == XT_LAYOUT_BSR ? rows
                             : layout == XT_LAYOUT_CSC || layout == XT_LAYOUT_BSC ? columns
                                                                                  : NULL;
  if (!parts)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "tensors of this layout cannot be saved; convert the tensor with \"to_dense\" first");
  xt_status status = XT_STATUS_ok;
  t->kind = XT_SAVE_SPARSE;
  for (; *parts && status == XT_STATUS_ok; parts++) status = add_part(s, t, *parts, error);
  xt_value coalesced = {.kind = XT_VALUE_BOOL};
  if (status == XT_STATUS_ok && layout == XT_LAYOUT_COO)
    status = call_op("aten::is_coalesced", t->tensor, &coalesced, error);
  t->coalesced = coalesced.kind == XT_VALUE_BOOL && coalesced.boolean;
  return status;
}

static xt_status add_quantized(xt_save_tensors *s, xt_save_tensor *t, xt_error *error) {
  xt_value scale = {.kind = XT_VALUE_NIL}, zero = scale, axis = scale;
  t->kind = XT_SAVE_QUANTIZED;
  xt_status status = add_part(s, t, "aten::int_repr", error);
  if (status != XT_STATUS_ok) return status;
  if (t->tensor->info.scheme == XT_SCHEME_PER_CHANNEL) {
    status = add_part(s, t, "aten::q_per_channel_scales", error);
    if (status == XT_STATUS_ok) status = add_part(s, t, "aten::q_per_channel_zero_points", error);
    if (status == XT_STATUS_ok) status = call_op("aten::q_per_channel_axis", t->tensor, &axis, error);
    t->axis = axis.integer;
    return status;
  }
  if (t->tensor->info.scheme != XT_SCHEME_PER_TENSOR)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "tensors of this quantization scheme cannot be saved; use \"dequantize\" first");
  status = call_op("aten::q_scale", t->tensor, &scale, error);
  if (status == XT_STATUS_ok) status = call_op("aten::q_zero_point", t->tensor, &zero, error);
  t->scale = scale.number;
  t->zero_point = zero.integer;
  return status;
}

xt_status xt_save_add(xt_save_tensors *s, xt_tensor *tensor, xt_save_tensor *out, xt_error *error) {
  const xt_tensor_info *info = &tensor->info;
  *out = (xt_save_tensor){.kind = XT_SAVE_STRIDED, .tensor = tensor};
  bool meta = info->device.type == XT_DEVICE_META, strided = info->layout == XT_LAYOUT_STRIDED;
  if (strided && !meta && !info->scheme) return add_view(s, out, tensor, error);
  if (!keep_other(s, tensor)) {
    xt_tensor_drop(tensor);
    return no_memory(error);
  }
  if (!strided) return add_sparse(s, out, error);
  if (!meta) return add_quantized(s, out, error);
  out->kind = XT_SAVE_META;
  return XT_STATUS_ok;
}

xt_status xt_save_add_bytes(xt_save_tensors *s, ERL_NIF_TERM binary, xt_dtype dtype, xt_error *error) {
  ErlNifBinary bytes;
  if (!s->binaries) s->binaries = enif_alloc_env();
  xt_save_view *view = s->binaries ? new_view(s) : NULL;
  if (!view || !enif_inspect_binary(s->binaries, enif_make_copy(s->binaries, binary), &bytes)) return no_memory(error);
  view->dtype = dtype;
  view->device = (xt_device){XT_DEVICE_CPU, -1};
  view->base = view->data = (uintptr_t)bytes.data;
  view->bytes = bytes.size;
  return XT_STATUS_ok;
}

/* ---- Payloads ---- */

/* Sort key. Views of the same `class` can share a storage: they have the same dtype, are a whole number of elements
 * apart, and are all tensors or all binaries. Within a class, views are ordered by address. */
typedef struct {
  uint32_t class;
  uintptr_t base;
  size_t view;
} sort_key;

enum { REMAINDER_BITS = 8, DTYPE_BITS = 8 };

static uint32_t class_of(const xt_save_view *view) {
  uint32_t remainder = (uint32_t)(view->base % xt_dtype_get(view->dtype)->size);
  uint32_t kind = view->staged ? 2 : view->handle ? 1 : 0;
  return (kind << DTYPE_BITS | (uint32_t)view->dtype) << REMAINDER_BITS | remainder;
}

static int by_memory(const void *a, const void *b) {
  const sort_key *x = a, *y = b;
  if (x->class != y->class) return x->class < y->class ? -1 : 1;
  if (x->base != y->base) return x->base < y->base ? -1 : 1;
  return x->view < y->view ? -1 : 1;
}

typedef struct {
  uintptr_t base, end;
  size_t key; /* 1 + index of the payload; 0 if it has none yet */
} group;

static int by_key(const void *a, const void *b) {
  return strcmp(((const xt_payload *)a)->key, ((const xt_payload *)b)->key);
}

/* Sorts the views and joins those that overlap in memory into groups. Returns the number of groups. */
static size_t group_views(const xt_save_tensors *s, sort_key *sorted, group *groups, size_t *group_of) {
  size_t count = 0;
  for (size_t i = 0; i < s->view_count; i++) sorted[i] = (sort_key){class_of(&s->views[i]), s->views[i].base, i};
  qsort(sorted, s->view_count, sizeof *sorted, by_memory);
  for (size_t i = 0; i < s->view_count; i++) {
    const xt_save_view *view = &s->views[sorted[i].view];
    bool joins = i && sorted[i].class == sorted[i - 1].class && !view->staged && view->bytes &&
                 s->views[sorted[i - 1].view].bytes && view->base < groups[count - 1].end;
    if (!joins) groups[count++] = (group){view->base, view->base + view->bytes, 0};
    else if (view->base + view->bytes > groups[count - 1].end) groups[count - 1].end = view->base + view->bytes;
    group_of[sorted[i].view] = count - 1;
  }
  return count;
}

static void init_payload(xt_payload *payload, size_t number, const xt_save_view *view, const group *g) {
  xt_decimal(payload->key, number); /* the payload is zeroed, so the key is terminated */
  payload->dtype = view->dtype;
  payload->bytes = view->staged ? view->bytes : g->end - g->base;
  payload->data = view->staged ? NULL : (const uint8_t *)g->base;
  bool typed = view->handle && xt_pickler_storage_class(view->dtype);
  uint64_t item = typed ? xt_dtype_get(view->dtype)->size : 1; /* untyped storages count bytes */
  payload->numel = (int64_t)(payload->bytes / item);
}

/* Creates one payload for each group, in the order in which the first view of the group was added. */
static xt_status plan(xt_save_tensors *s, sort_key *sorted, group *groups, size_t *group_of, xt_error *error) {
  size_t count = group_views(s, sorted, groups, group_of);
  s->payloads = calloc(count + 1, sizeof *s->payloads);
  s->payload_view = calloc(count + 1, sizeof *s->payload_view);
  if (!s->payloads || !s->payload_view) return no_memory(error);
  for (size_t i = 0; i < s->view_count; i++) {
    xt_save_view *view = &s->views[i];
    group *g = &groups[group_of[i]];
    if (!g->key) {
      g->key = ++s->payload_count;
      init_payload(&s->payloads[g->key - 1], g->key - 1, view, g);
      s->payload_view[g->key - 1] = i;
    }
    view->payload = g->key - 1;
    view->offset = view->staged ? 0 : (int64_t)((view->data - g->base) / xt_dtype_get(view->dtype)->size);
  }
  return XT_STATUS_ok;
}

xt_status xt_save_plan(xt_save_tensors *s, xt_error *error) {
  sort_key *order = calloc(s->view_count + 1, sizeof *order);
  group *groups = calloc(s->view_count + 1, sizeof *groups);
  size_t *group_of = calloc(s->view_count + 1, sizeof *group_of);
  xt_status status = order && groups && group_of ? plan(s, order, groups, group_of, error) : no_memory(error);
  free(order);
  free(groups);
  free(group_of);
  return status;
}

xt_status xt_save_sort(xt_save_tensors *s, xt_error *error) {
  size_t *views = calloc(s->payload_count + 1, sizeof *views);
  if (!views) return no_memory(error);
  qsort(s->payloads, s->payload_count, sizeof *s->payloads, by_key);
  for (size_t i = 0; i < s->payload_count; i++) views[i] = s->payload_view[strtoull(s->payloads[i].key, NULL, 10)];
  free(s->payload_view);
  s->payload_view = views;
  return XT_STATUS_ok;
}

xt_status xt_save_fetch(xt_save_tensors *s, size_t payload, xt_tensor **staged, const uint8_t **data, xt_error *error) {
  const xt_save_view *view = &s->views[s->payload_view[payload]];
  xt_status status = xt_torch->tensor_plain(view->handle, staged, error);
  if (status != XT_STATUS_ok) return status;
  *data = (*staged)->info.data;
  return xt_tensor_check_memory(view->handle, error); /* the caller drops *staged */
}

void xt_save_free(xt_save_tensors *s) {
  for (size_t i = 0; i < s->view_count; i++)
    if (s->views[i].handle) xt_tensor_drop(s->views[i].handle);
  for (size_t i = 0; i < s->other_count; i++) xt_tensor_drop(s->others[i]);
  if (s->binaries) enif_free_env(s->binaries);
  free(s->views);
  free(s->others);
  free(s->payloads);
  free(s->payload_view);
  memset(s, 0, sizeof *s);
}
