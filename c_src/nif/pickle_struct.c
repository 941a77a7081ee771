/* Structs in pickles: Python values that have no Elixir equivalent, sets, and tensors. */
#include <string.h>

#include "nif/pickle_walk.h"
#include "nif/save_tensor.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* ---- Python values ---- */

static ERL_NIF_TERM field(xt_pickle_walk *w, ERL_NIF_TERM map, ERL_NIF_TERM key) {
  ERL_NIF_TERM value = xt_am_nil;
  enif_get_map_value(w->env, map, key, &value);
  return value;
}

static bool get_text(xt_pickle_walk *w, ERL_NIF_TERM map, ERL_NIF_TERM key, ErlNifBinary *out) {
  return enif_inspect_binary(w->env, field(w, map, key), out);
}

static bool has_newline(const ErlNifBinary *b) { return memchr(b->data, '\n', b->size) != NULL; }

static xt_status put_wrapped(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM module) {
  ErlNifBinary data;
  if (!get_text(w, t->term, xt_am_data, &data)) return xt_pickle_walk_fail(w, t, "its data is not a binary");
  if (module == xt_am_module_raw_text) return xt_pickle_walk_put_text(w, t, (const char *)data.data, data.size, true);
  if (data.size > UINT32_MAX / 2) return xt_pickle_walk_fail(w, t, "its data is larger than 2 GiB");
  if (module == xt_am_module_byte_array) xt_pickler_put_global(w->out, "__builtin__\nbytearray\n");
  xt_pickler_put_bytes(w->out, data.data, data.size);
  if (module != xt_am_module_byte_array) return XT_STATUS_ok;
  xt_pickler_put_tuple_of(w->out, 1);
  xt_pickler_put_reduce(w->out);
  return XT_STATUS_ok;
}

static xt_status put_complex(xt_pickle_walk *w, const xt_pickle_task *t) {
  double re, im;
  if (!xt_get_complex(w->env, t->term, &re, &im)) return xt_pickle_walk_fail(w, t, "its parts are not numbers");
  xt_pickler_put_complex(w->out, re, im);
  return XT_STATUS_ok;
}

static xt_status put_dtype(xt_pickle_walk *w, const xt_pickle_task *t) {
  xt_dtype dtype;
  if (!xt_get_dtype(w->env, field(w, t->term, xt_am_name), &dtype))
    return xt_pickle_walk_fail(w, t, "its name is not a dtype");
  xt_pickler_put_dtype(w->out, dtype);
  return XT_STATUS_ok;
}

static xt_status put_device(xt_pickle_walk *w, const xt_pickle_task *t) {
  ErlNifBinary type;
  ErlNifSInt64 value;
  bool indexed = enif_get_int64(w->env, field(w, t->term, xt_am_index), &value);
  const int64_t index = indexed ? value : 0;
  if (!get_text(w, t->term, xt_am_type, &type)) return xt_pickle_walk_fail(w, t, "its type is not a string");
  xt_pickler_put_device(w->out, (const char *)type.data, type.size, indexed ? &index : NULL);
  return XT_STATUS_ok;
}

/* Decodes a class or function. */
static xt_status get_global(xt_pickle_walk *w, const xt_pickle_task *t, ErlNifBinary *module, ErlNifBinary *name) {
  if (get_text(w, t->term, xt_am_module, module) && get_text(w, t->term, xt_am_name, name) && !has_newline(module) &&
      !has_newline(name))
    return XT_STATUS_ok;
  return xt_pickle_walk_fail(w, t, "its module and name must be strings of one line");
}

static xt_status put_global(xt_pickle_walk *w, const xt_pickle_task *t) {
  ErlNifBinary module, name;
  xt_status status = get_global(w, t, &module, &name);
  if (status == XT_STATUS_ok)
    xt_pickler_put_name(w->out, (const char *)module.data, module.size, (const char *)name.data, name.size);
  return status;
}

/* Pushes MARK, the items and SETITEMS, in reverse order. */
static xt_status push_dict(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM dict) {
  ERL_NIF_TERM pairs;
  xt_status status;
  xt_pickle_task part = {.term = dict, .path = xt_pickle_walk_path(w, t, xt_am_dict)};
  if (!enif_is_map(w->env, dict)) return xt_pickle_walk_fail(w, t, "its dict is not a map");
  if (!part.path || !xt_pickle_walk_push_op(w, XT_OP_SETITEMS)) return xt_pickle_walk_no_memory(w);
  if (enif_get_map_value(w->env, dict, xt_am_pairs, &pairs)) status = xt_pickle_walk_push_pairs(w, &part, pairs);
  else status = xt_pickle_walk_push_map(w, &part, dict, false);
  if (status != XT_STATUS_ok) return status;
  return xt_pickle_walk_push_op(w, XT_OP_MARK) ? XT_STATUS_ok : xt_pickle_walk_no_memory(w);
}

/* Pushes MARK, the items and APPENDS, in reverse order. */
static bool push_list(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM list) {
  ERL_NIF_TERM head;
  xt_pickle_task part = {.term = list, .path = xt_pickle_walk_path(w, t, xt_am_list)};
  bool pushed = part.path && xt_pickle_walk_push_op(w, XT_OP_APPENDS);
  size_t from = w->count;
  for (size_t i = 0; pushed && enif_get_list_cell(w->env, list, &head, &list); i++)
    pushed = xt_pickle_walk_push_at(w, &part, head, true, 0, i);
  xt_pickle_walk_reverse(w, from);
  return pushed && xt_pickle_walk_push_op(w, XT_OP_MARK);
}

/* Writes class(*args) or class.__new__(class, *args), then APPENDS of its list, SETITEMS of its dict and BUILD with its
 * state. Tasks are pushed in reverse order. */
static xt_status put_object(xt_pickle_walk *w, const xt_pickle_task *t) {
  ERL_NIF_TERM list = field(w, t->term, xt_am_list), dict = field(w, t->term, xt_am_dict);
  ERL_NIF_TERM state = field(w, t->term, xt_am_state), args = field(w, t->term, xt_am_args);
  bool is_new = field(w, t->term, xt_am_new) == xt_am_true, pushed = true, written;
  uint32_t number;
  if (!enif_is_tuple(w->env, args)) return xt_pickle_walk_fail(w, t, "its args are not a tuple");
  xt_status entered = xt_pickle_walk_enter(w, t, &number, &written);
  if (entered != XT_STATUS_ok || written) return entered;
  if (state != xt_am_nil)
    pushed = xt_pickle_walk_push_op(w, XT_OP_BUILD) && xt_pickle_walk_push_at(w, t, state, false, xt_am_state, 0);
  if (pushed && dict != xt_am_nil) {
    xt_status status = push_dict(w, t, dict);
    if (status != XT_STATUS_ok) return status;
  }
  if (pushed && list != xt_am_nil) pushed = push_list(w, t, list);
  pushed = pushed && xt_pickle_walk_push_complete(w, is_new ? XT_OP_NEWOBJ : XT_OP_REDUCE, number) &&
           xt_pickle_walk_push_at(w, t, args, false, xt_am_args, 0) &&
           xt_pickle_walk_push_at(w, t, field(w, t->term, xt_am_class), false, xt_am_class, 0);
  return pushed ? XT_STATUS_ok : xt_pickle_walk_no_memory(w);
}

static xt_status put_set(xt_pickle_walk *w, const xt_pickle_task *t) {
  ERL_NIF_TERM map = field(w, t->term, xt_am_map);
  if (!enif_is_map(w->env, map)) return xt_pickle_walk_fail(w, t, "the MapSet has no map");
  size_t size = 0;
  uint32_t number;
  bool written;
  enif_get_map_size(w->env, map, &size);
  xt_status status = xt_pickle_walk_enter(w, t, &number, &written);
  if (status != XT_STATUS_ok || written) return status;
  xt_pickler_put_global(w->out, "__builtin__\nset\n");
  xt_pickler_put_list(w->out);
  if (size) xt_pickler_put_mark(w->out);
  if (!xt_pickle_walk_push_complete(w, XT_OP_REDUCE, number) || !xt_pickle_walk_push_op(w, XT_OP_TUPLE1) ||
      (size && !xt_pickle_walk_push_op(w, XT_OP_APPENDS)))
    return xt_pickle_walk_no_memory(w);
  return xt_pickle_walk_push_map(w, t, map, true);
}

static xt_status put_numpy_scalar(xt_pickle_walk *w, const xt_pickle_task *t) {
  xt_dtype dtype;
  uint8_t bytes[16];
  if (!xt_get_dtype(w->env, field(w, t->term, xt_am_dtype), &dtype) ||
      !xt_get_element(w->env, field(w, t->term, xt_am_value), dtype, bytes) || !*xt_dtype_get(dtype)->numpy)
    return xt_pickle_walk_fail(w, t, "its value does not fit its dtype");
  xt_pickler_put_numpy_scalar(w->out, dtype, bytes);
  return XT_STATUS_ok;
}

/* ---- Tensors ---- */

/* torch reads no untyped storages from legacy files, and some dtypes have no others. */
static xt_status check_storages(xt_pickle_walk *w, const xt_pickle_task *t, const xt_save_tensor *tensor) {
  for (int i = 0; w->draft->plan->format->id_views && i < tensor->view_count; i++) {
    const xt_save_view *view = &tensor->views[i];
    if (!view->untyped && xt_pickler_storage_class(view->dtype)) continue;
    char path[XT_PATH_TEXT];
    xt_pickle_walk_describe(w, t->path, path, sizeof path);
    return xt_error_set(w->error, XT_STATUS_unsupported,
                        "cannot save term%s: torch cannot read %s tensors from legacy files; use another format or "
                        "convert the tensor first",
                        path, xt_dtype_get(view->dtype)->name);
  }
  return XT_STATUS_ok;
}

static void drop_views(xt_save_tensor *tensor) {
  for (int i = 0; i < tensor->view_count; i++)
    if (tensor->views[i].drop) tensor->views[i].drop(tensor->views[i].owner);
}

/* Describes a tensor, or a %Cast{} of one. The caller drops *handle. */
static xt_status take_tensor(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM term, xt_tensor **handle,
                             xt_save_tensor *out) {
  xt_tensor_resource *resource;
  xt_dtype dtype;
  if (!xt_get_tensor(w->env, term, &resource)) return xt_pickle_walk_fail(w, t, "the tensor has no resource");
  xt_status status = xt_tensor_take(resource, handle, w->error);
  if (status == XT_STATUS_ok) {
    status = xt_save_tensor_describe(*handle, out, w->error);
    if (status != XT_STATUS_ok) xt_tensor_drop(*handle);
    else if (xt_get_cast(w->env, term, &dtype)) xt_save_tensor_cast(out, dtype);
  }
  if (status == XT_STATUS_released || status == XT_STATUS_unsupported) {
    char path[XT_PATH_TEXT];
    xt_error inner = *w->error;
    xt_pickle_walk_describe(w, t->path, path, sizeof path);
    xt_error_set(w->error, status, "cannot save term%s: %s", path, inner.message);
  }
  if (status != XT_STATUS_ok || (status = check_storages(w, t, out)) == XT_STATUS_ok) return status;
  drop_views(out);
  xt_tensor_drop(*handle);
  return status;
}

static xt_status put_tensor(xt_pickle_walk *w, const xt_pickle_task *t) {
  xt_save_tensor tensor;
  xt_tensor *handle;
  xt_status status = take_tensor(w, t, t->term, &handle, &tensor);
  if (status != XT_STATUS_ok) return status;
  xt_draft_put_tensor(w->draft, &tensor);
  xt_tensor_drop(handle);
  return XT_STATUS_ok;
}

/* Writes a storage outside a tensor. Its elements are those of the tensor. */
static xt_status put_storage(xt_pickle_walk *w, const xt_pickle_task *t) {
  xt_save_tensor tensor;
  xt_save_view *view = &tensor.views[0];
  xt_tensor_resource *resource;
  xt_tensor *handle;
  xt_dtype dtype;
  ERL_NIF_TERM inner = field(w, t->term, xt_am_tensor);
  if (!xt_get_tensor(w->env, inner, &resource))
    return xt_pickle_walk_fail(w, t, "a storage needs its elements as a tensor in its field tensor");
  xt_status status = take_tensor(w, t, inner, &handle, &tensor);
  if (status != XT_STATUS_ok) return status;
  if (tensor.kind != XT_SAVE_STRIDED || view->ndim != 1 || (view->sizes[0] > 1 && view->strides[0] != 1)) {
    drop_views(&tensor);
    status = xt_pickle_walk_fail(w, t, "the tensor of a storage must be contiguous and have one dimension and data");
  } else {
    if (xt_get_dtype(w->env, field(w, t->term, xt_am_dtype), &dtype) && xt_dtype_plain(dtype) == view->dtype)
      view->dtype = dtype; /* a quantized one */
    view->bare = true;
    xt_draft_put_storage(w->draft, view);
  }
  xt_tensor_drop(handle);
  return status;
}

static void free_env(void *env) { enif_free_env(env); }

/* The view's owner is an environment with a copy of the binary, which does not copy its bytes if it is large. */
static xt_status put_raw_tensor(xt_pickle_walk *w, const xt_pickle_task *t) {
  int64_t sizes[XT_MAX_DIMS], strides[XT_MAX_DIMS];
  int stride_count;
  ErlNifBinary data;
  xt_save_tensor tensor = {.kind = XT_SAVE_STRIDED, .view_count = 1};
  xt_save_view *view = &tensor.views[0];
  *view = (xt_save_view){.sizes = sizes, .strides = strides, .device = {XT_DEVICE_CPU, -1}, .untyped = true};
  ERL_NIF_TERM bytes = field(w, t->term, xt_am_data);
  if (!xt_get_dtype(w->env, field(w, t->term, xt_am_dtype), &view->dtype) ||
      !xt_get_dims(w->env, field(w, t->term, xt_am_shape), sizes, &view->ndim) ||
      !xt_get_dims(w->env, field(w, t->term, xt_am_strides), strides, &stride_count) || view->ndim != stride_count ||
      !enif_inspect_binary(w->env, bytes, &data))
    return xt_pickle_walk_fail(w, t, "its dtype, shape, strides or data is invalid");
  view->storage_bytes = data.size;
  view->untyped = !xt_pickler_storage_class(view->dtype) || data.size % xt_dtype_get(view->dtype)->size;
  const char *problem = xt_save_view_problem(view);
  if (problem) return xt_pickle_walk_fail(w, t, problem);
  xt_status status = check_storages(w, t, &tensor);
  if (status != XT_STATUS_ok) return status;
  view->owner = enif_alloc_env();
  if (!view->owner) return xt_pickle_walk_no_memory(w);
  view->drop = free_env;
  enif_inspect_binary(view->owner, enif_make_copy(view->owner, bytes), &data);
  view->data = view->storage = data.data;
  xt_draft_put_tensor(w->draft, &tensor);
  return XT_STATUS_ok;
}

/* Writes torch._tensor._rebuild_from_type_v2(function, class, args, state). The function and its arguments are those of
 * the inner tensor, or the class and arguments of an inner object. */
static xt_status put_subclass(xt_pickle_walk *w, const xt_pickle_task *t) {
  ERL_NIF_TERM inner = field(w, t->term, xt_am_tensor), state = field(w, t->term, xt_am_state), type;
  xt_pickle_task class = {.term = field(w, t->term, xt_am_class), .path = xt_pickle_walk_path(w, t, xt_am_class)};
  xt_tensor_resource *resource;
  bool object = enif_get_map_value(w->env, inner, xt_am___struct__, &type) && type == xt_am_module_object;
  xt_pickle_task part = {.term = inner, .path = xt_pickle_walk_path(w, t, xt_am_tensor)};
  uint32_t number;
  bool written;
  xt_status status = xt_pickle_walk_enter(w, t, &number, &written);
  if (status != XT_STATUS_ok || written) return status;
  xt_pickler_put_global(w->out, "torch._tensor\n_rebuild_from_type_v2\n");
  xt_pickler_put_mark(w->out);
  bool pushed = part.path && xt_pickle_walk_push_complete(w, XT_OP_REDUCE, number) &&
                xt_pickle_walk_push_op(w, XT_OP_TUPLE) && xt_pickle_walk_push_at(w, t, state, false, xt_am_state, 0);
  if (object)
    pushed = pushed && xt_pickle_walk_push_at(w, &part, field(w, inner, xt_am_args), false, xt_am_args, 0) &&
             xt_pickle_walk_push_at(w, t, class.term, false, xt_am_class, 0) &&
             xt_pickle_walk_push_at(w, &part, field(w, inner, xt_am_class), false, xt_am_class, 0);
  if (!pushed || !class.path) return xt_pickle_walk_no_memory(w);
  if (object) return XT_STATUS_ok;
  if (!xt_get_tensor(w->env, inner, &resource)) return xt_pickle_walk_fail(w, t, "its tensor field is not a tensor");
  ErlNifBinary module, name;
  xt_save_tensor tensor;
  xt_tensor *handle;
  status = get_global(w, &class, &module, &name);
  if (status == XT_STATUS_ok) status = take_tensor(w, t, inner, &handle, &tensor);
  if (status != XT_STATUS_ok) return status;
  xt_draft_put_function(w->draft, &tensor);
  xt_pickler_put_name(w->out, (const char *)module.data, module.size, (const char *)name.data, name.size);
  xt_draft_put_arguments(w->draft, &tensor);
  xt_tensor_drop(handle);
  return XT_STATUS_ok;
}

xt_status xt_pickle_walk_put_struct(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM module) {
  if (module == xt_am_module_tensor || module == xt_am_module_blob_view || module == xt_am_module_cast)
    return put_tensor(w, t);
  if (module == xt_am_module_dict) return xt_pickle_walk_put_pairs(w, t, field(w, t->term, xt_am_pairs));
  if (module == xt_am_module_bytes || module == xt_am_module_byte_array || module == xt_am_module_raw_text)
    return put_wrapped(w, t, module);
  if (module == xt_am_module_complex) return put_complex(w, t);
  if (module == xt_am_module_dtype) return put_dtype(w, t);
  if (module == xt_am_module_device) return put_device(w, t);
  if (module == xt_am_module_global) return put_global(w, t);
  if (module == xt_am_module_object) return put_object(w, t);
  if (module == xt_am_module_numpy_scalar) return put_numpy_scalar(w, t);
  if (module == xt_am_module_raw_tensor) return put_raw_tensor(w, t);
  if (module == xt_am_module_tensor_subclass) return put_subclass(w, t);
  if (module == xt_am_module_map_set) return put_set(w, t);
  if (module == xt_am_module_ref) return xt_pickle_walk_put_ref(w, t);
  if (module == xt_am_module_storage) return put_storage(w, t);
  char text[256];
  enif_snprintf(text, sizeof text, "structs of %T are not supported; convert it to a map or a tensor first", module);
  return xt_pickle_walk_fail(w, t, text);
}
