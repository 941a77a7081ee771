/* Tensors and records out of an open checkpoint. */
#include <stdlib.h>
#include <string.h>

#include "core/loader.h"
#include "core/memory.h"
#include "nif_checkpoint.h"
#include "nif_table.h"
#include "nif_tensor.h"

static ErlNifResourceType *loading_type;

/* A load that goes on: it keeps the checkpoint in use. One caller at a time. */
typedef struct {
  atomic_flag busy;
  bool begun;
  xt_checkpoint_resource *checkpoint;
  xt_loader loader;
  size_t *entries; /* which of the index, in order */
  size_t count;
} loading;

typedef struct {
  xt_reapable reapable;
  xt_loader loader;
} dead_loader;

static void free_dead(xt_reapable *self) {
  xt_loader_free(&((dead_loader *)self)->loader);
  free(self);
}

static void loading_destroyed(ErlNifEnv *env, void *object) {
  loading *self = object;
  (void)env;
  free(self->entries);
  if (!self->begun) return;
  /* regions may be large: the reaper drops them. Without memory for the note it is done here. */
  dead_loader *dead = malloc(sizeof *dead);
  if (dead) {
    *dead = (dead_loader){{NULL, free_dead}, self->loader};
    xt_reaper_push(&dead->reapable);
  } else {
    xt_loader_free(&self->loader);
  }
  xt_checkpoint_done(self->checkpoint);
  enif_release_resource(self->checkpoint);
}

bool xt_loading_load(ErlNifEnv *env) {
  ErlNifResourceTypeInit init = {.dtor = loading_destroyed};
  loading_type = enif_open_resource_type_x(env, "extorch_loading", &init, ERL_NIF_RT_CREATE, NULL);
  return loading_type != NULL;
}

/* ---- One tensor, of any kind ---- */

static xt_value tensor_value(xt_tensor *tensor) { return (xt_value){.kind = XT_VALUE_TENSOR, .tensor = tensor}; }
static xt_value int_value(int64_t integer) { return (xt_value){.kind = XT_VALUE_INT, .integer = integer}; }
static xt_value name_value(const char *name) { return (xt_value){.kind = XT_VALUE_NAME, .name = {name, false, 0}}; }

static bool dims_value(xt_arena *arena, const int64_t *dims, uint32_t ndim, xt_value *out) {
  xt_value *items = xt_arena_alloc(arena, ndim, sizeof *items);
  for (uint32_t d = 0; items && d < ndim; d++) items[d] = int_value(dims[d]);
  *out = (xt_value){.kind = XT_VALUE_LIST, .list = {items, ndim}};
  return items != NULL;
}

/* An operator with at most one result, a tensor. */
static xt_status run(const xt_op_call *call, xt_arena *arena, xt_tensor **out, xt_error *error) {
  xt_value *results;
  size_t count;
  xt_status status = xt_torch->op(call, arena, &results, &count, error);
  if (status == XT_STATUS_ok && count) *out = results[0].tensor;
  return status;
}

static xt_status no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "no memory for a tensor");
}

/* One operator on one tensor, which is taken over. */
static xt_status apply(xt_tensor *tensor, const char *name, xt_tensor **out, xt_error *error) {
  xt_arena arena = {NULL};
  xt_value arg = tensor_value(tensor);
  xt_op_call call = {.name = name, .args = &arg, .arg_count = 1};
  xt_status status = run(&call, &arena, out, error);
  xt_arena_free(&arena);
  xt_tensor_drop(tensor);
  return status;
}

static xt_status make_meta(const xt_node_tensor *t, xt_tensor **out, xt_error *error) {
  xt_arena arena = {NULL};
  xt_value args[2];
  xt_named_value kwargs[] = {{"dtype", name_value(xt_dtype_get(t->dtype)->name)}, {"device", name_value("meta")}};
  xt_op_call call = {"aten::empty_strided", args, 2, kwargs, 2};
  bool made = dims_value(&arena, t->sizes, t->ndim, &args[0]) && dims_value(&arena, t->strides, t->ndim, &args[1]);
  xt_status status = made ? run(&call, &arena, out, error) : no_memory(error);
  xt_arena_free(&arena);
  return status;
}

/* Where the bytes of a strided tensor come from: a reader, or a loader that has read them. */
typedef struct {
  const xt_checkpoint *checkpoint;
  const xt_reader *reader; /* NULL: the loader */
  const xt_loader *loader;
} origin;

static xt_status make_strided(const origin *from, const xt_node_tensor *t, xt_dtype dtype, xt_tensor **out,
                              xt_error *error) {
  xt_view view;
  xt_status status = XT_STATUS_ok;
  if (from->reader) status = xt_reader_view(from->reader, t, &view, error);
  else xt_loader_view(from->loader, t, &view);
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

/* LibTorch checks that indices fit the shape before it is given them: a file could say anything. */
static xt_status make_sparse(const xt_node_tensor *t, xt_value *parts, xt_tensor **out, xt_error *error) {
  static const char *const names[] = {"strided",    "sparse_coo", "sparse_csr", "",
                                      "sparse_csc", "sparse_bsr", "sparse_bsc"};
  xt_arena arena = {NULL};
  bool coo = t->layout == XT_LAYOUT_COO;
  uint32_t n = t->part_count;
  xt_named_value layout = {"layout", name_value(names[t->layout])};
  xt_value args[5];
  memcpy(args, parts, n * sizeof *args);
  xt_status status = dims_value(&arena, t->sizes, t->ndim, &args[n]) ? XT_STATUS_ok : no_memory(error);
  xt_op_call check = {coo ? "aten::_validate_sparse_coo_tensor_args" : "aten::_validate_sparse_compressed_tensor_args",
                      args, n + 1, &layout, !coo};
  xt_op_call make = {coo ? "aten::sparse_coo_tensor.indices_size"
                         : "aten::sparse_compressed_tensor.comp_plain_value_size",
                     args, n + 1, &layout, !coo};
  if (status == XT_STATUS_ok) status = run(&check, &arena, out, error);
  if (status == XT_STATUS_torch) error->status = status = XT_STATUS_corrupt;
  if (status == XT_STATUS_ok) status = run(&make, &arena, out, error);
  xt_arena_free(&arena);
  return status;
}

static xt_status make_quantized(const origin *from, const xt_node_tensor *t, xt_value *parts, xt_tensor **out,
                                xt_error *error) {
  xt_arena arena = {NULL};
  xt_tensor *integers;
  xt_dtype dtype = t->dtype == XT_qint8 ? XT_int8 : t->dtype == XT_quint8 ? XT_uint8 : XT_int32;
  xt_status status = make_strided(from, t, dtype, &integers, error);
  if (status != XT_STATUS_ok) return status;
  xt_value plain[] = {
      tensor_value(integers), {.kind = XT_VALUE_FLOAT, .number = t->more->scale}, int_value(t->more->zero_point)};
  xt_value channels[] = {tensor_value(integers), parts[0], parts[1], int_value(t->more->axis)};
  xt_op_call call = t->part_count ? (xt_op_call){"aten::_make_per_channel_quantized_tensor", channels, 4, NULL, 0}
                                  : (xt_op_call){"aten::_make_per_tensor_quantized_tensor", plain, 3, NULL, 0};
  status = run(&call, &arena, out, error);
  xt_arena_free(&arena);
  xt_tensor_drop(integers);
  return status;
}

static bool is_sparse(const xt_node_tensor *t) { return t->layout != XT_LAYOUT_STRIDED; }

static bool is_meta(const xt_checkpoint *c, const xt_node_tensor *t) {
  return !is_sparse(t) && (t->storage == XT_NO_STORAGE || !c->records[t->storage]);
}

static xt_status make_any(const origin *from, const xt_node_tensor *t, xt_tensor **out, xt_error *error) {
  xt_value parts[3] = {{0}};
  uint32_t made = 0;
  xt_status status = XT_STATUS_ok;
  for (; made < t->part_count && status == XT_STATUS_ok; made++) {
    parts[made] = tensor_value(NULL);
    status = is_meta(from->checkpoint, t->more->parts[made])
                 ? xt_error_set(error, XT_STATUS_corrupt, "a part of a tensor has no values")
                 : make_strided(from, t->more->parts[made], t->more->parts[made]->dtype, &parts[made].tensor, error);
  }
  if (status != XT_STATUS_ok) made--; /* the one that failed */
  else if (is_sparse(t)) status = make_sparse(t, parts, out, error);
  else if (is_meta(from->checkpoint, t)) status = make_meta(t, out, error);
  else if (t->quantized) status = make_quantized(from, t, parts, out, error);
  else status = make_strided(from, t, t->dtype, out, error);
  while (made--) xt_tensor_drop(parts[made].tensor);
  if (status == XT_STATUS_ok) (*out)->requires_grad = t->requires_grad;
  return status;
}

/* A file that changed under us explains more than what was then found in it. */
static xt_status blame_change(const xt_opened *opened, xt_status status, xt_error *error) {
  xt_error changed;
  bool suspicious = status == XT_STATUS_ok || status == XT_STATUS_corrupt || status == XT_STATUS_truncated;
  if (opened->file.fd < 0 || !suspicious || xt_file_check(&opened->file, &changed) == XT_STATUS_ok) return status;
  *error = changed;
  return error->status;
}

/* checkpoint_tensor(checkpoint, entry's index, verify?) :: {:ok, tensor, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_tensor(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  ErlNifUInt64 i;
  xt_error error;
  xt_tensor *tensor = NULL;
  bool verify;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_get_uint64(env, argv[1], &i) ||
      !xt_get_bool(env, argv[2], &verify))
    return enif_make_badarg(env);
  if (xt_checkpoint_use(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_opened *opened = resource->opened;
  const xt_checkpoint *c = &opened->checkpoint;
  if (i >= c->index.count) {
    xt_checkpoint_done(resource);
    return enif_make_badarg(env);
  }
  const xt_node_tensor *t = c->index.entries[i].tensor;
  xt_reader reader = xt_opened_reader(opened, env, verify);
  origin from = {c, &reader, NULL};
  xt_status status;
  if (!xt_torch->has_dtype(t->dtype))
    status = xt_error_set(&error, XT_STATUS_unsupported,
                          "%s is newer than the linked LibTorch (%s); read_storage has the bytes",
                          xt_dtype_get(t->dtype)->name, xt_torch->version);
  else status = make_any(&from, t, &tensor, &error);
  bool made = status == XT_STATUS_ok;
  status = blame_change(opened, status, &error);
  if (made && status != XT_STATUS_ok) xt_tensor_drop(tensor);
  xt_checkpoint_done(resource);
  return xt_return_tensor(env, status, tensor, &error);
}

/* ---- Many tensors ---- */

static bool get_entries(ErlNifEnv *env, ERL_NIF_TERM term, size_t limit, loading *self) {
  ERL_NIF_TERM head;
  ErlNifUInt64 i;
  unsigned length = (unsigned)limit;
  bool all = term == xt_am_all;
  if (!all && !enif_get_list_length(env, term, &length)) return false;
  self->entries = malloc((length + 1) * sizeof *self->entries);
  if (!self->entries) return false;
  while (all && self->count < limit) self->entries[self->count] = self->count, self->count++;
  while (!all && enif_get_list_cell(env, term, &head, &term)) {
    if (!enif_get_uint64(env, head, &i) || i >= limit) return false;
    self->entries[self->count++] = i;
  }
  return true;
}

/* checkpoint_load_begin(checkpoint, [entry's index] | :all, verify?)
 *   :: {:ok, {loading, bytes to read, bytes of all tensors}, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_load_begin(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  xt_error error;
  bool verify;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !xt_get_bool(env, argv[2], &verify)) return enif_make_badarg(env);
  if (xt_checkpoint_use(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  const xt_checkpoint *c = &resource->opened->checkpoint;
  loading *self = enif_alloc_resource(loading_type, sizeof *self);
  memset(self, 0, sizeof *self);
  atomic_flag_clear(&self->busy);
  ERL_NIF_TERM term = enif_make_resource(env, self);
  enif_release_resource(self);
  bool *wanted = calloc(c->meaning.storage_count + 1, sizeof *wanted);
  if (!wanted || !get_entries(env, argv[1], c->index.count, self)) {
    free(wanted);
    xt_checkpoint_done(resource);
    return enif_make_badarg(env);
  }
  uint64_t logical = 0;
  for (size_t i = 0; i < self->count; i++) {
    const xt_node_tensor *t = c->index.entries[self->entries[i]].tensor;
    logical += (uint64_t)xt_tensor_node_bytes(t); /* each is below 2^63, and the sum only has to exceed a limit */
    if (logical > INT64_MAX) logical = INT64_MAX;
    if (t->storage != XT_NO_STORAGE) wanted[t->storage] = true;
    for (uint32_t part = 0; part < t->part_count; part++) wanted[t->more->parts[part]->storage] = true;
  }
  xt_reader reader = xt_opened_reader(resource->opened, env, verify);
  xt_status status = xt_loader_begin(&self->loader, &reader, wanted, &error);
  free(wanted);
  enif_keep_resource(resource);
  self->checkpoint = resource;
  self->begun = true;
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  return xt_make_ok(
      env, enif_make_tuple3(env, term, enif_make_uint64(env, self->loader.total), enif_make_uint64(env, logical)));
}

/* A dtype that LibTorch lacks: its bytes. */
static ERL_NIF_TERM make_raw(ErlNifEnv *env, const xt_node_tensor *t, xt_view *view) {
  int64_t span = 1;
  for (uint32_t d = 0; d < t->ndim; d++) {
    if (!t->sizes[d]) span = -INT64_MAX;
    if (span > 0) span += (t->sizes[d] - 1) * view->strides[d];
  }
  size_t bytes = span > 0 ? (size_t)span * xt_dtype_get(t->dtype)->size : 0;
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_data, xt_am_dtype, xt_am_shape, xt_am_strides};
  ERL_NIF_TERM values[] = {xt_am_module_raw_tensor, xt_make_region(env, view->region, view->data, bytes),
                           xt_make_dtype(t->dtype), xt_make_dims(env, t->sizes, (int)t->ndim),
                           xt_make_dims(env, view->strides, (int)t->ndim)};
  return xt_make_struct(env, keys, values, 5);
}

static xt_status make_loaded(ErlNifEnv *env, const loading *self, size_t i, ERL_NIF_TERM *out, xt_error *error) {
  const xt_checkpoint *c = self->loader.reader.checkpoint;
  const xt_node_tensor *t = c->index.entries[self->entries[i]].tensor;
  origin from = {c, NULL, &self->loader};
  xt_tensor *tensor = NULL;
  xt_view view;
  if (!xt_torch->has_dtype(t->dtype) && !is_sparse(t) && !is_meta(c, t)) {
    xt_loader_view(&self->loader, t, &view);
    *out = make_raw(env, t, &view);
    return XT_STATUS_ok;
  }
  xt_status status = make_any(&from, t, &tensor, error);
  if (status == XT_STATUS_ok) *out = xt_make_tensor(env, tensor);
  return status;
}

static xt_status make_all(ErlNifEnv *env, const loading *self, ERL_NIF_TERM *out, xt_error *error) {
  ERL_NIF_TERM *terms = enif_alloc((self->count + 1) * sizeof *terms);
  xt_status status =
      terms ? XT_STATUS_ok : xt_error_set(error, XT_STATUS_no_memory, "no memory for the tensors' terms");
  for (size_t i = 0; i < self->count && status == XT_STATUS_ok; i++)
    status = make_loaded(env, self, i, &terms[i], error);
  if (status == XT_STATUS_ok) *out = enif_make_list_from_array(env, terms, (unsigned)self->count);
  enif_free(terms);
  return status;
}

/* checkpoint_load_step(loading, bytes) :: {:ok, {:more, bytes done} | {:done, [tensor]}, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_load_step(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loading *self;
  ErlNifUInt64 budget;
  xt_error error;
  bool finished = false;
  ERL_NIF_TERM list = xt_am_nil;
  (void)argc;
  if (!enif_get_resource(env, argv[0], loading_type, (void **)&self) || !enif_get_uint64(env, argv[1], &budget))
    return enif_make_badarg(env);
  if (atomic_flag_test_and_set(&self->busy)) {
    xt_error_set(&error, XT_STATUS_busy, "another process is going on with this load");
    return xt_make_error(env, &error);
  }
  self->loader.reader.context = env;
  xt_opened *opened = self->checkpoint->opened;
  xt_status status = xt_loader_step(&self->loader, budget, &finished, &error);
  if (finished || status != XT_STATUS_ok) status = blame_change(opened, status, &error);
  if (status == XT_STATUS_ok && finished) status = make_all(env, self, &list, &error);
  uint64_t done = self->loader.done;
  atomic_flag_clear(&self->busy);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  return xt_make_ok(env, finished ? enif_make_tuple2(env, xt_am_done, list)
                                  : enif_make_tuple2(env, xt_am_more, enif_make_uint64(env, done)));
}

/* ---- Records ---- */

/* checkpoint_read(checkpoint, record's name, from, size | nil, verify?) :: {:ok, binary, bytes} | {:ok, nil, 0} |
 * {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_read(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  ErlNifBinary name;
  ErlNifUInt64 from, size = 0;
  xt_error error;
  bool verify;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_inspect_binary(env, argv[1], &name) ||
      !enif_get_uint64(env, argv[2], &from) || (argv[3] != xt_am_nil && !enif_get_uint64(env, argv[3], &size)) ||
      !xt_get_bool(env, argv[4], &verify))
    return enif_make_badarg(env);
  if (xt_checkpoint_use(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_opened *opened = resource->opened;
  xt_reader reader = xt_opened_reader(opened, env, verify);
  const xt_zip_entry *entry = xt_zip_find(&opened->checkpoint.zip, (char *)name.data, name.size);
  ERL_NIF_TERM binary = xt_am_nil;
  xt_status status = XT_STATUS_ok;
  if (entry) {
    if (argv[3] == xt_am_nil) size = from <= entry->size ? entry->size - from : 0;
    xt_region *region = from <= entry->size && size <= entry->size - from ? xt_region_new(size ? size : 1, 0) : NULL;
    if (!region && (from > entry->size || size > entry->size - from))
      status =
          xt_error_set(&error, XT_STATUS_bad_argument, "bytes %llu to %llu are not all in the record, which has %llu",
                       (unsigned long long)from, (unsigned long long)(from + size), (unsigned long long)entry->size);
    else if (!region) status = xt_reader_refused(&error);
    else if (opened->checkpoint.zip.count &&
             (status = xt_reader_range(&reader, entry, from, size, region->data, &error)) != XT_STATUS_ok)
      xt_region_drop(region);
    if (status == XT_STATUS_ok) binary = xt_make_region(env, region, region->data, size);
  }
  status = blame_change(opened, status, &error);
  xt_checkpoint_done(resource);
  return status == XT_STATUS_ok ? xt_make_ok(env, binary) : xt_make_error(env, &error);
}

/* ---- Sources that Elixir reads ----
 *
 * where → {:place, offset, size}: the record's header is to be read and given to checkpoint_place, then asked again
 * where → {:bytes, offset, size}: what the tensor or record is made of
 */

/* What is asked for: an entry by its index, or a record by its name. */
static bool get_target(ErlNifEnv *env, ERL_NIF_TERM term, const xt_checkpoint *c, const xt_zip_entry **record,
                       const xt_node_tensor **tensor) {
  ErlNifUInt64 i;
  ErlNifBinary name;
  *tensor = NULL;
  *record = NULL;
  if (enif_get_uint64(env, term, &i)) {
    if (i >= c->index.count) return false;
    *tensor = c->index.entries[i].tensor;
    *record = (*tensor)->storage == XT_NO_STORAGE ? NULL : c->records[(*tensor)->storage];
    return true;
  }
  if (!enif_inspect_binary(env, term, &name)) return false;
  *record = xt_zip_find(&c->zip, (char *)name.data, name.size);
  return true;
}

/* checkpoint_where(checkpoint, index | record's name, whole?) :: {:ok, {:place | :bytes, offset, size} | nil, 0} |
 * {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_where(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  const xt_zip_entry *record;
  const xt_node_tensor *tensor;
  xt_error error;
  bool whole;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !xt_get_bool(env, argv[2], &whole)) return enif_make_badarg(env);
  if (xt_checkpoint_use(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_checkpoint *c = &resource->opened->checkpoint;
  bool known = get_target(env, argv[1], c, &record, &tensor);
  ERL_NIF_TERM kind = xt_am_bytes;
  uint64_t offset = 0, size = 0;
  if (known && record) {
    uint64_t data = xt_checkpoint_place(c, record);
    xt_need need = xt_checkpoint_place_need(record);
    if (!data) {
      kind = xt_am_place;
      offset = need.offset, size = need.size;
    } else if (tensor && !whole) {
      xt_reader reader = {.checkpoint = c};
      xt_reader_span(&reader, tensor, data, &offset, &size);
    } else {
      offset = data, size = record->packed;
    }
  }
  xt_checkpoint_done(resource);
  if (!known) return enif_make_badarg(env);
  if (!record) return xt_make_ok(env, xt_am_nil);
  return xt_make_ok(env, enif_make_tuple3(env, kind, enif_make_uint64(env, offset), enif_make_uint64(env, size)));
}

/* checkpoint_place(checkpoint, index | record's name, header) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_place(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  const xt_zip_entry *record;
  const xt_node_tensor *tensor;
  ErlNifBinary header;
  xt_error error;
  uint64_t data;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_inspect_binary(env, argv[2], &header))
    return enif_make_badarg(env);
  if (xt_checkpoint_use(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_checkpoint *c = &resource->opened->checkpoint;
  bool fits =
      get_target(env, argv[1], c, &record, &tensor) && record && header.size == xt_checkpoint_place_need(record).size;
  xt_status status = fits ? xt_checkpoint_check_place(c, record, header.data, &data, &error) : XT_STATUS_ok;
  xt_checkpoint_done(resource);
  if (!fits) return enif_make_badarg(env);
  return status == XT_STATUS_ok ? xt_make_ok(env, xt_am_ok) : xt_make_error(env, &error);
}

/* checkpoint_made_of(checkpoint, index | record's name, verify?, offset, binary)
 *   :: {:ok, tensor | %RawTensor{} | binary, bytes} |
 * {:error, e}
 *
 * The binary has the bytes at that offset; a tensor shares it where nothing has to be done to them. */
ERL_NIF_TERM xt_nif_checkpoint_made_of(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  const xt_zip_entry *record;
  const xt_node_tensor *t;
  ErlNifUInt64 offset;
  xt_error error;
  xt_tensor *tensor = NULL;
  xt_view view;
  bool verify;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !xt_get_bool(env, argv[2], &verify) ||
      !enif_get_uint64(env, argv[3], &offset) || !enif_is_binary(env, argv[4]))
    return enif_make_badarg(env);
  if (xt_checkpoint_use(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  const xt_checkpoint *c = &resource->opened->checkpoint;
  bool fits = get_target(env, argv[1], c, &record, &t);
  xt_reader reader = xt_opened_reader(resource->opened, env, verify);
  reader.memory = fits && record ? xt_pin_binary(argv[4]) : NULL;
  reader.memory_at = offset;
  origin from = {c, &reader, NULL};
  ERL_NIF_TERM made = xt_am_nil;
  xt_status status = XT_STATUS_ok;
  if (fits && t && t->part_count) {
    status = xt_error_set(&error, XT_STATUS_unsupported,
                          "a tensor of several storages (sparse, quantized per channel) is read from a path or a "
                          "binary, not from a source");
  } else if (fits && record && !reader.memory) {
    status = no_memory(&error);
  } else if (fits && t && record && !xt_torch->has_dtype(t->dtype)) {
    status = xt_reader_view(&reader, t, &view, &error);
    if (status == XT_STATUS_ok) made = make_raw(env, t, &view);
  } else if (fits && t) {
    status = make_any(&from, t, &tensor, &error);
  } else if (fits && record) {
    xt_region *region;
    status = xt_reader_record(&reader, record, &region, &error);
    if (status == XT_STATUS_ok) made = xt_make_region(env, region, region->data, record->size);
  }
  xt_region_drop_later(reader.memory);
  xt_checkpoint_done(resource);
  if (!fits) return enif_make_badarg(env);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  return xt_make_ok(env, tensor ? xt_make_tensor(env, tensor) : made);
}
