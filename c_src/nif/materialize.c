#include "nif/materialize.h"

#include <stdlib.h>
#include <string.h>

#include "nif/frozen_binary.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

static xt_value tensor_value(xt_tensor *tensor) { return (xt_value){.kind = XT_VALUE_TENSOR, .tensor = tensor}; }
static xt_value int_value(int64_t integer) { return (xt_value){.kind = XT_VALUE_INT, .integer = integer}; }
static xt_value name_value(const char *name) { return (xt_value){.kind = XT_VALUE_NAME, .name = {name, false, 0}}; }

static bool dims_value(xt_arena *arena, const int64_t *dims, uint32_t ndim, xt_value *out) {
  xt_value *items = xt_arena_alloc(arena, ndim, sizeof *items);
  for (uint32_t d = 0; items && d < ndim; d++) items[d] = int_value(dims[d]);
  *out = (xt_value){.kind = XT_VALUE_LIST, .list = {items, ndim}};
  return items != NULL;
}

/* Calls an operator that returns a tensor or nothing. */
static xt_status call_op(const xt_op_call *call, xt_arena *arena, xt_tensor **out, xt_error *error) {
  xt_value *results;
  size_t count;
  xt_status status = xt_torch->op(call, arena, &results, &count, error);
  if (status == XT_STATUS_ok && count) *out = results[0].tensor;
  return status;
}

static xt_status no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while creating a tensor");
}

/* Calls an operator on one tensor. Takes ownership of the reference to it. */
static xt_status apply(xt_tensor *tensor, const char *name, xt_tensor **out, xt_error *error) {
  xt_arena arena = {NULL};
  xt_value arg = tensor_value(tensor);
  xt_op_call call = {.name = name, .args = &arg, .arg_count = 1};
  xt_status status = call_op(&call, &arena, out, error);
  xt_arena_free(&arena);
  xt_tensor_drop(tensor);
  return status;
}

static xt_status make_meta(const xt_tensor_desc *t, xt_tensor **out, xt_error *error) {
  xt_arena arena = {NULL};
  xt_value args[2];
  xt_named_value kwargs[] = {{"dtype", name_value(xt_dtype_get(t->dtype)->name)}, {"device", name_value("meta")}};
  xt_op_call call = {"aten::empty_strided", args, 2, kwargs, 2};
  bool allocated = dims_value(&arena, t->sizes, t->ndim, &args[0]) && dims_value(&arena, t->strides, t->ndim, &args[1]);
  xt_status status = allocated ? call_op(&call, &arena, out, error) : no_memory(error);
  xt_arena_free(&arena);
  return status;
}

static xt_status get_view(const xt_storage_origin *origin, const xt_tensor_desc *t, xt_view *out, xt_error *error) {
  xt_region *region = origin->regions ? origin->regions[t->storage] : NULL;
  if (!region && !origin->reader) return xt_error_set(error, XT_STATUS_corrupt, "the data of a storage is missing");
  if (!region) return xt_record_reader_view(origin->reader, t, out, error);
  xt_record_reader_view_region(region, t, out);
  return XT_STATUS_ok;
}

static xt_status make_strided(const xt_storage_origin *origin, const xt_tensor_desc *t, xt_dtype dtype, xt_tensor **out,
                              xt_error *error) {
  xt_view view;
  xt_status status = get_view(origin, t, &view, error);
  if (status != XT_STATUS_ok) return status;
  xt_foreign memory = {.data = view.data,
                       .dtype = dtype,
                       .device = {XT_DEVICE_CPU, -1},
                       .ndim = (int)t->ndim,
                       .sizes = t->sizes,
                       .strides = view.strides,
                       .owner = view.region,
                       .release = xt_region_drop};
  status = xt_torch->tensor_foreign(&memory, out, error);
  if (status == XT_STATUS_ok && t->conj) status = apply(*out, "aten::_conj", out, error);
  if (status == XT_STATUS_ok && t->neg) status = apply(*out, "aten::_neg_view", out, error);
  return status;
}

/* The indices come from the file, so LibTorch validates them before it creates the tensor. */
static xt_status make_sparse(const xt_tensor_desc *t, xt_value *parts, xt_tensor **out, xt_error *error) {
  xt_arena arena = {NULL};
  bool coo = t->layout == XT_LAYOUT_COO;
  uint32_t n = t->part_count;
  xt_named_value layout = {"layout", name_value(xt_layout_name(t->layout))};
  xt_value args[5];
  memcpy(args, parts, n * sizeof *args);
  xt_status status = dims_value(&arena, t->sizes, t->ndim, &args[n]) ? XT_STATUS_ok : no_memory(error);
  xt_op_call check = {coo ? "aten::_validate_sparse_coo_tensor_args" : "aten::_validate_sparse_compressed_tensor_args",
                      args, n + 1, &layout, !coo};
  xt_op_call make = {coo ? "aten::sparse_coo_tensor.indices_size"
                         : "aten::sparse_compressed_tensor.comp_plain_value_size",
                     args, n + 1, &layout, !coo};
  if (status == XT_STATUS_ok) status = call_op(&check, &arena, out, error);
  if (status == XT_STATUS_ok) status = call_op(&make, &arena, out, error);
  if (status == XT_STATUS_torch || status == XT_STATUS_bad_argument) /* the parts come from the file */
    error->status = status = XT_STATUS_corrupt;
  xt_arena_free(&arena);
  return status;
}

static xt_status make_quantized(const xt_storage_origin *origin, const xt_tensor_desc *t, xt_value *parts,
                                xt_tensor **out, xt_error *error) {
  xt_arena arena = {NULL};
  xt_tensor *integers;
  xt_dtype dtype = t->dtype == XT_qint8 ? XT_int8 : t->dtype == XT_quint8 ? XT_uint8 : XT_int32;
  xt_status status = make_strided(origin, t, dtype, &integers, error);
  if (status != XT_STATUS_ok) return status;
  xt_value plain[] = {
      tensor_value(integers), {.kind = XT_VALUE_FLOAT, .number = t->more->scale}, int_value(t->more->zero_point)};
  xt_value channels[] = {tensor_value(integers), parts[0], parts[1], int_value(t->more->axis)};
  xt_op_call call = t->part_count ? (xt_op_call){"aten::_make_per_channel_quantized_tensor", channels, 4, NULL, 0}
                                  : (xt_op_call){"aten::_make_per_tensor_quantized_tensor", plain, 3, NULL, 0};
  status = call_op(&call, &arena, out, error);
  xt_arena_free(&arena);
  xt_tensor_drop(integers);
  return status;
}

static bool is_sparse(const xt_tensor_desc *t) { return t->layout != XT_LAYOUT_STRIDED; }

static bool is_meta(const xt_checkpoint *c, const xt_tensor_desc *t) {
  return !is_sparse(t) && (t->storage == XT_NO_STORAGE || !c->records[t->storage]);
}

xt_status xt_materialize_tensor(const xt_storage_origin *origin, const xt_tensor_desc *t, xt_tensor **out,
                                xt_error *error) {
  xt_value parts[3] = {{0}};
  uint32_t created = 0;
  xt_status status = XT_STATUS_ok;
  for (; created < t->part_count && status == XT_STATUS_ok; created++) {
    parts[created] = tensor_value(NULL);
    status = is_meta(origin->checkpoint, t->more->parts[created])
                 ? xt_error_set(error, XT_STATUS_corrupt, "a sparse or quantized tensor has a part without values")
                 : make_strided(origin, t->more->parts[created], t->more->parts[created]->dtype, &parts[created].tensor,
                                error);
  }
  if (status != XT_STATUS_ok) created--; /* the last one failed */
  else if (is_sparse(t)) status = make_sparse(t, parts, out, error);
  else if (is_meta(origin->checkpoint, t)) status = make_meta(t, out, error);
  else if (t->quantized) status = make_quantized(origin, t, parts, out, error);
  else status = make_strided(origin, t, t->dtype, out, error);
  while (created--) xt_tensor_drop(parts[created].tensor);
  if (status == XT_STATUS_ok) (*out)->requires_grad = t->requires_grad;
  return status;
}

/* Makes a %RawTensor{}. Takes ownership of the view's region. */
static ERL_NIF_TERM make_raw(ErlNifEnv *env, const xt_tensor_desc *t, xt_view *view) {
  int64_t span = 1;
  for (uint32_t d = 0; d < t->ndim; d++) {
    if (!t->sizes[d]) span = -INT64_MAX;
    if (span > 0) span += (t->sizes[d] - 1) * view->strides[d];
  }
  size_t bytes = span > 0 ? (size_t)span * xt_dtype_get(t->dtype)->size : 0;
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_data, xt_am_dtype, xt_am_shape, xt_am_strides};
  ERL_NIF_TERM values[] = {xt_am_module_raw_tensor, xt_make_region_binary(env, view->region, view->data, bytes),
                           xt_make_dtype(t->dtype), xt_make_dims(env, t->sizes, (int)t->ndim),
                           xt_make_dims(env, view->strides, (int)t->ndim)};
  return xt_make_struct(env, keys, values, 5);
}

xt_status xt_materialize_term(ErlNifEnv *env, const xt_storage_origin *origin, const xt_tensor_desc *t,
                              xt_tensor_like *like, ERL_NIF_TERM *out, xt_error *error) {
  xt_tensor *tensor = NULL;
  xt_view view;
  xt_status status;
  if (!xt_torch->has_dtype(t->dtype) && !is_sparse(t) && !is_meta(origin->checkpoint, t)) {
    status = get_view(origin, t, &view, error);
    if (status == XT_STATUS_ok) *out = make_raw(env, t, &view);
    return status;
  }
  status = xt_materialize_tensor(origin, t, &tensor, error);
  if (status == XT_STATUS_ok) *out = xt_make_tensor_like(env, tensor, like);
  return status;
}

void xt_release_terms(ErlNifEnv *env, const ERL_NIF_TERM *terms, size_t count) {
  xt_tensor_resource *tensor;
  for (size_t i = 0; i < count; i++)
    if (xt_get_tensor(env, terms[i], &tensor)) xt_nif_tensor_release(env, 1, &terms[i]);
}

/* After this many tensors, asks whether the caller is alive. */
enum { STOP_TENSORS = 1024 };

/* `first` has room for one term per entry, by the index of a tensor's first entry. It may be NULL if all entries are
 * wanted: these terms are among `terms` then. */
static xt_status make_terms(ErlNifEnv *env, const xt_storage_origin *origin, const size_t *entries, size_t count,
                            ERL_NIF_TERM *terms, ERL_NIF_TERM *first, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  size_t made = 0;
  xt_tensor_like like = {.term = 0};
  for (; made < count && status == XT_STATUS_ok; made++) {
    const xt_tensor_desc *tensor = origin->checkpoint->index.entries[entries ? entries[made] : made].tensor;
    ERL_NIF_TERM *term = first ? &first[tensor->first_entry - 1] : &terms[tensor->first_entry - 1];
    if (*term) {
      terms[made] = *term;
      continue;
    }
    status = xt_materialize_term(env, origin, tensor, &like, &terms[made], error);
    *term = terms[made];
    if (status == XT_STATUS_ok && made % STOP_TENSORS == STOP_TENSORS - 1 && !enif_is_current_process_alive(env))
      status = xt_error_set(error, XT_STATUS_stopping, "the calling process has exited");
  }
  if (status != XT_STATUS_ok) xt_release_terms(env, terms, made - 1); /* the last one failed */
  return status;
}

xt_status xt_materialize_entries(ErlNifEnv *env, const xt_storage_origin *origin, const size_t *entries, size_t count,
                                 const xt_object_style *style, ERL_NIF_TERM *out, xt_error *error) {
  size_t all = origin->checkpoint->index.count;
  xt_arena arena = {.expected = (count + (entries ? all : 0)) * sizeof(ERL_NIF_TERM)};
  ERL_NIF_TERM *terms = xt_arena_alloc(&arena, count + 1, sizeof *terms);
  ERL_NIF_TERM *first = entries ? xt_arena_alloc(&arena, all + 1, sizeof *first) : NULL;
  xt_status status = terms && (first || !entries)
                         ? XT_STATUS_ok
                         : xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors");
  if (status == XT_STATUS_ok) status = make_terms(env, origin, entries, count, terms, first, error);
  if (status == XT_STATUS_ok && style) {
    status = xt_make_object(env, origin->checkpoint, terms, *style, out, error);
    if (status != XT_STATUS_ok) xt_release_terms(env, terms, count);
  } else if (status == XT_STATUS_ok) {
    *out = enif_make_list_from_array(env, terms, (unsigned)count);
  }
  xt_arena_free(&arena);
  return status;
}

xt_status xt_materialize_supported(const xt_storage_origin *origin, const xt_tensor_desc *t, xt_tensor **out,
                                   xt_error *error) {
  if (xt_torch->has_dtype(t->dtype)) return xt_materialize_tensor(origin, t, out, error);
  return xt_error_set(error, XT_STATUS_unsupported,
                      "dtype %s is not supported by the linked LibTorch (%s); read the bytes with "
                      "ExTorch.Checkpoint.read_storage/2",
                      xt_dtype_get(t->dtype)->name, xt_torch->version ? xt_torch->version : "none");
}

bool xt_materialize_is_plain(const xt_checkpoint *c, const xt_tensor_desc *t) {
  return t->layout == XT_LAYOUT_STRIDED && t->storage != XT_NO_STORAGE && c->records[t->storage] && !t->part_count &&
         !t->quantized && !t->conj && !t->neg;
}
