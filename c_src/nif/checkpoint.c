/* Opening checkpoints and asking what is in them. */
#include "nif/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/push.h"
#include "core/memory/memory.h"
#include "core/os/exit_guard.h"
#include "core/os/mapping.h"
#include "nif/pin.h"
#include "nif/table.h"
#include "nif/tensor.h"

static ErlNifResourceType *checkpoint_type, *region_type;

/* ---- Life ---- */

static void free_opened(xt_reapable *self) {
  xt_checkpoint_handle *opened = (xt_checkpoint_handle *)self;
  xt_checkpoint_free(&opened->checkpoint);
  xt_file_close(&opened->file);
  xt_region_drop(opened->memory);
  free(opened);
}

static xt_checkpoint_handle *new_opened(void) {
  xt_checkpoint_handle *opened = calloc(1, sizeof *opened);
  if (!opened) return NULL;
  opened->reapable.run = free_opened;
  opened->file.fd = -1;
  return opened;
}

/* True when it was open: whoever closes first closes. */
static bool close_resource(xt_checkpoint_resource *resource) {
  uint_least64_t before = atomic_fetch_or(&resource->state, 1);
  if (before == 0) xt_reaper_push(&resource->opened->reapable);
  return !(before & 1);
}

static void checkpoint_destroyed(ErlNifEnv *env, void *object) {
  (void)env;
  close_resource(object);
}

/* What a binary over a region keeps. */
typedef struct {
  xt_region *region;
  xt_frozen frozen;
} region_view;

static void region_destroyed(ErlNifEnv *env, void *object) {
  region_view *view = object;
  (void)env;
  xt_frozen_remove(&view->frozen);
  xt_region_drop_later(view->region);
}

bool xt_checkpoint_register(ErlNifEnv *env) {
  ErlNifResourceTypeInit checkpoints = {.dtor = checkpoint_destroyed}, regions = {.dtor = region_destroyed};
  checkpoint_type = enif_open_resource_type_x(env, "extorch_checkpoint", &checkpoints, ERL_NIF_RT_CREATE, NULL);
  region_type = enif_open_resource_type_x(env, "extorch_region", &regions, ERL_NIF_RT_CREATE, NULL);
  return checkpoint_type && region_type;
}

bool xt_get_checkpoint(ErlNifEnv *env, ERL_NIF_TERM term, xt_checkpoint_resource **out) {
  return enif_get_resource(env, term, checkpoint_type, (void **)out);
}

static xt_status enter(xt_checkpoint_resource *resource, xt_error *error) {
  uint_least64_t state = atomic_load(&resource->state);
  do {
    if (state & 1) return xt_error_set(error, XT_STATUS_released, "this checkpoint was closed; open it again");
  } while (!atomic_compare_exchange_weak(&resource->state, &state, state + 2));
  return XT_STATUS_ok;
}

xt_status xt_checkpoint_enter(xt_checkpoint_resource *resource, xt_error *error) {
  xt_status status = enter(resource, error);
  if (status != XT_STATUS_ok || resource->opened->open) return status;
  xt_checkpoint_leave(resource);
  return xt_error_set(error, XT_STATUS_bad_argument, "this checkpoint is not open yet");
}

void xt_checkpoint_leave(xt_checkpoint_resource *resource) {
  if (atomic_fetch_sub(&resource->state, 2) == 3) xt_reaper_push(&resource->opened->reapable);
}

static bool caller_gone(void *env) { return !enif_is_current_process_alive(env); }

xt_record_reader xt_checkpoint_handle_reader(xt_checkpoint_handle *opened, ErlNifEnv *env, bool verify) {
  return (xt_record_reader){.checkpoint = &opened->checkpoint,
                            .file = &opened->file,
                            .memory = opened->checkpoint.unpacked ? opened->checkpoint.memory : opened->memory,
                            .verify = verify,
                            .stop = caller_gone,
                            .context = env};
}

ERL_NIF_TERM xt_make_region_binary(ErlNifEnv *env, xt_region *region, const void *data, size_t size) {
  region_view *view = enif_alloc_resource(region_type, sizeof *view);
  view->region = region;
  xt_frozen_add(&view->frozen, data, size);
  ERL_NIF_TERM binary = enif_make_resource_binary(env, view, data, size);
  enif_release_resource(view);
  return binary;
}

static ERL_NIF_TERM make_checkpoint(ErlNifEnv *env, xt_checkpoint_handle *opened) {
  xt_checkpoint_resource *resource = enif_alloc_resource(checkpoint_type, sizeof *resource);
  atomic_init(&resource->state, 0);
  resource->opened = opened;
  ERL_NIF_TERM term = enif_make_resource(env, resource);
  enif_release_resource(resource);
  return term;
}

/* ---- Opening ---- */

typedef struct {
  bool strict, mmap, verify;
  xt_limits limits;
  uint64_t offset;
} options;

/* {strict?, mmap?, verify?, pickle_bytes, nodes, depth, tensor_bytes, offset} */
static bool get_options(ErlNifEnv *env, ERL_NIF_TERM term, options *out) {
  const ERL_NIF_TERM *items;
  ErlNifUInt64 numbers[5];
  int arity;
  if (!enif_get_tuple(env, term, &arity, &items) || arity != 8 || !xt_get_bool(env, items[0], &out->strict) ||
      !xt_get_bool(env, items[1], &out->mmap) || !xt_get_bool(env, items[2], &out->verify))
    return false;
  for (int i = 0; i < 5; i++)
    if (!enif_get_uint64(env, items[3 + i], &numbers[i])) return false;
  out->offset = numbers[4];
  out->limits = (xt_limits){numbers[0], numbers[1], numbers[2], numbers[3]};
  return numbers[2] >= 1 && numbers[2] <= 10000;
}

static xt_status run_open(xt_checkpoint_handle *opened, const xt_record_reader *reader, xt_error *error) {
  xt_need need = {0, 0, NULL};
  xt_status status;
  while ((status = xt_checkpoint_step(&opened->checkpoint, &need, error)) == XT_STATUS_ok && need.size)
    if ((status = xt_record_reader_fetch(reader, need.offset, need.to, need.size, error)) != XT_STATUS_ok) break;
  opened->open = status == XT_STATUS_ok;
  return status;
}

static ERL_NIF_TERM return_opened(ErlNifEnv *env, xt_checkpoint_handle *opened, xt_status status, xt_error *error) {
  if (status == XT_STATUS_ok) return xt_make_ok(env, make_checkpoint(env, opened));
  free_opened(&opened->reapable);
  return xt_make_error(env, error);
}

static ERL_NIF_TERM out_of_memory(ErlNifEnv *env) {
  xt_error error;
  xt_error_set(&error, XT_STATUS_no_memory, "no memory to open the checkpoint");
  return xt_make_error(env, &error);
}

/* checkpoint_open(path, options) :: {:ok, checkpoint, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[4096];
  ErlNifBinary text;
  options opts;
  xt_error error;
  (void)argc;
  if (!enif_inspect_binary(env, argv[0], &text) || text.size >= sizeof path || memchr(text.data, 0, text.size) ||
      !get_options(env, argv[1], &opts))
    return enif_make_badarg(env);
  memcpy(path, text.data, text.size);
  path[text.size] = 0;
  xt_checkpoint_handle *opened = new_opened();
  if (!opened) return out_of_memory(env);
  xt_status status = xt_file_open(&opened->file, path, &error);
  if (status == XT_STATUS_ok) {
    xt_checkpoint_begin(&opened->checkpoint, opened->file.size, opts.offset, &opts.limits, opts.strict, opts.verify,
                        &error);
    xt_record_reader reader = xt_checkpoint_handle_reader(opened, env, false);
    status = run_open(opened, &reader, &error);
  }
  if (status == XT_STATUS_ok) status = xt_file_check(&opened->file, &error);
  if (status == XT_STATUS_ok && opts.mmap) status = xt_mapping_open(&opened->file, &opened->memory, &error);
  return return_opened(env, opened, status, &error);
}

static void release_pin(xt_region *self) { xt_pin_release(self->owner); }

xt_region *xt_pin_binary(ERL_NIF_TERM term) {
  ErlNifBinary binary;
  ERL_NIF_TERM copy;
  xt_pin *pin = xt_pin_new();
  if (pin && xt_pin_term(pin, term, &copy) && enif_inspect_binary(pin->env, copy, &binary)) {
    xt_region *region = xt_region_foreign(binary.data, binary.size, pin, release_pin);
    if (region) {
      xt_frozen_add(&pin->frozen, binary.data, binary.size);
      return region;
    }
  }
  if (pin) xt_pin_release(pin);
  return NULL;
}

/* checkpoint_open_binary(binary, options) :: {:ok, checkpoint, 0} | {:error, e}     tensors share the binary */
ERL_NIF_TERM xt_nif_checkpoint_open_binary(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  options opts;
  xt_error error;
  (void)argc;
  if (!enif_is_binary(env, argv[0]) || !get_options(env, argv[1], &opts)) return enif_make_badarg(env);
  xt_checkpoint_handle *opened = new_opened();
  if (!opened) return out_of_memory(env);
  opened->memory = xt_pin_binary(argv[0]);
  if (!opened->memory) {
    free_opened(&opened->reapable);
    return out_of_memory(env);
  }
  xt_checkpoint_begin(&opened->checkpoint, opened->memory->size, opts.offset, &opts.limits, opts.strict, opts.verify,
                      &error);
  xt_record_reader reader = xt_checkpoint_handle_reader(opened, env, false);
  return return_opened(env, opened, run_open(opened, &reader, &error), &error);
}

/* {:need, offset, size} while bytes are missing, :open afterwards. */
static ERL_NIF_TERM make_need(ErlNifEnv *env, const xt_need *need) {
  if (!need->size) return xt_am_open;
  return enif_make_tuple3(env, xt_am_need, enif_make_uint64(env, need->offset), enif_make_uint64(env, need->size));
}

/* source_reader_open(size, options) :: {:ok, {checkpoint, need}, 0} | {:error, e}     for sources that Elixir reads */
ERL_NIF_TERM xt_nif_source_reader_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 size;
  options opts;
  xt_error error;
  (void)argc;
  if (!enif_get_uint64(env, argv[0], &size) || !get_options(env, argv[1], &opts)) return enif_make_badarg(env);
  xt_checkpoint_handle *opened = new_opened();
  if (!opened) return out_of_memory(env);
  xt_checkpoint_begin(&opened->checkpoint, size, opts.offset, &opts.limits, opts.strict, opts.verify, &error);
  xt_status status = xt_checkpoint_step(&opened->checkpoint, &opened->need, &error);
  if (status != XT_STATUS_ok) {
    free_opened(&opened->reapable);
    return xt_make_error(env, &error);
  }
  ERL_NIF_TERM need = make_need(env, &opened->need);
  return xt_make_ok(env, enif_make_tuple2(env, make_checkpoint(env, opened), need));
}

/* source_reader_fill(checkpoint, binary) :: {:ok, need | :open, 0} | {:error, e}     the bytes that were needed */
ERL_NIF_TERM xt_nif_source_reader_fill(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  ErlNifBinary bytes;
  xt_error error;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_inspect_binary(env, argv[1], &bytes))
    return enif_make_badarg(env);
  /* alone: a checkpoint that is being opened is no use to anybody else */
  uint_least64_t idle = 0;
  if (!atomic_compare_exchange_strong(&resource->state, &idle, 2)) {
    xt_error_set(&error, idle & 1 ? XT_STATUS_released : XT_STATUS_busy, "this checkpoint is in use");
    return xt_make_error(env, &error);
  }
  xt_checkpoint_handle *opened = resource->opened;
  xt_status status = XT_STATUS_ok;
  if (opened->open || !opened->need.size || bytes.size != opened->need.size)
    status = xt_error_set(&error, XT_STATUS_io, "the source gave %zu bytes where %zu were asked for", bytes.size,
                          opened->need.size);
  if (status == XT_STATUS_ok) {
    memcpy(opened->need.to, bytes.data, bytes.size);
    status = xt_checkpoint_step(&opened->checkpoint, &opened->need, &error);
  }
  if (status != XT_STATUS_ok) opened->need = (xt_need){0, 0, NULL};
  if (status == XT_STATUS_ok && !opened->need.size) opened->open = true;
  ERL_NIF_TERM need = make_need(env, &opened->need);
  xt_checkpoint_leave(resource);
  return status == XT_STATUS_ok ? xt_make_ok(env, need) : xt_make_error(env, &error);
}

xt_status xt_checkpoint_for_push(ErlNifEnv *env, ERL_NIF_TERM term, xt_checkpoint_resource **out, ERL_NIF_TERM *made,
                                 xt_error *error) {
  options opts;
  if (!get_options(env, term, &opts)) return XT_STATUS_bad_argument;
  xt_checkpoint_handle *opened = new_opened();
  if (!opened) return xt_error_set(error, XT_STATUS_no_memory, "no memory to open the checkpoint");
  xt_push_begin_checkpoint(&opened->checkpoint, &opts.limits, opts.strict, opts.verify, error);
  *made = make_checkpoint(env, opened);
  xt_get_checkpoint(env, *made, out);
  enif_keep_resource(*out);
  return enter(*out, error);
}

/* checkpoint_close(checkpoint) :: boolean     was it open? */
ERL_NIF_TERM xt_nif_checkpoint_close(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource)) return enif_make_badarg(env);
  return xt_make_bool(close_resource(resource));
}

/* ---- What is in it ---- */

static ERL_NIF_TERM make_path(ErlNifEnv *env, const xt_checkpoint *c, const xt_path *path) {
  ERL_NIF_TERM list = enif_make_list(env, 0), key;
  for (; path; path = path->parent) {
    if (!path->key) key = enif_make_int64(env, path->position);
    else if (!xt_make_node(env, c, path->key, &key)) key = xt_am_nil;
    list = enif_make_list_cell(env, key, list);
  }
  return list;
}

int64_t xt_tensor_desc_bytes(const xt_tensor_desc *t) {
  int64_t bytes = (int64_t)xt_dtype_get(t->dtype)->size;
  for (uint32_t d = 0; d < t->ndim && t->layout == XT_LAYOUT_STRIDED; d++) bytes *= t->sizes[d];
  if (t->layout != XT_LAYOUT_STRIDED) bytes = 0;
  for (uint32_t part = 0; part < t->part_count; part++) bytes += xt_tensor_desc_bytes(t->more->parts[part]);
  return bytes;
}

static ERL_NIF_TERM kind_of(const xt_checkpoint *c, const xt_tensor_desc *t) {
  switch (t->layout) {
  case XT_LAYOUT_COO: return xt_am_sparse_coo;
  case XT_LAYOUT_CSR: return xt_am_sparse_csr;
  case XT_LAYOUT_CSC: return xt_am_sparse_csc;
  case XT_LAYOUT_BSR: return xt_am_sparse_bsr;
  case XT_LAYOUT_BSC: return xt_am_sparse_bsc;
  default: break;
  }
  if (t->storage == XT_NO_STORAGE || !c->records[t->storage]) return xt_am_meta;
  return t->quantized ? xt_am_quantized : t->parameter ? xt_am_parameter : xt_am_tensor;
}

ERL_NIF_TERM xt_make_entry(ErlNifEnv *env, const xt_checkpoint *c, size_t i) {
  const xt_index_entry *entry = &c->index.entries[i];
  const xt_tensor_desc *t = entry->tensor;
  const xt_storage *storage = t->storage == XT_NO_STORAGE ? NULL : &c->rebuild.storages[t->storage];
  bool sparse = t->layout != XT_LAYOUT_STRIDED;
  const xt_storage *saved = sparse ? &c->rebuild.storages[t->more->parts[t->part_count - 1]->storage] : storage;
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_device,  xt_am_dtype,  xt_am_index, xt_am_kind,
                         xt_am_name,       xt_am_nbytes,  xt_am_offset, xt_am_path,  xt_am_requires_grad,
                         xt_am_shape,      xt_am_storage, xt_am_strides};
  ERL_NIF_TERM values[] = {
      xt_am_module_entry,
      saved ? xt_make_text(env, saved->location, saved->location_size) : xt_make_text(env, "meta", 4),
      xt_make_dtype(t->dtype),
      enif_make_uint64(env, i),
      kind_of(c, t),
      xt_make_text(env, entry->name, entry->name_size),
      enif_make_int64(env, xt_tensor_desc_bytes(t)),
      enif_make_int64(env, t->offset),
      make_path(env, c, entry->path),
      xt_make_bool(t->requires_grad),
      xt_make_dims(env, t->sizes, (int)t->ndim),
      storage ? xt_make_text(env, storage->key, storage->key_size) : xt_am_nil,
      sparse ? xt_am_nil : xt_make_dims(env, t->strides, (int)t->ndim),
  };
  return xt_make_struct(env, keys, values, 13);
}

/* checkpoint_keys(checkpoint) :: {:ok, [name], 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_keys(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  xt_error error;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource)) return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  const xt_index *index = &resource->opened->checkpoint.index;
  ERL_NIF_TERM list = enif_make_list(env, 0);
  for (size_t i = index->count; i-- > 0;)
    list = enif_make_list_cell(env, xt_make_text(env, index->entries[i].name, index->entries[i].name_size), list);
  xt_checkpoint_leave(resource);
  return xt_make_ok(env, list);
}

/* checkpoint_entries(checkpoint) :: {:ok, [%Entry{}], 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_entries(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  xt_error error;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource)) return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  const xt_checkpoint *c = &resource->opened->checkpoint;
  ERL_NIF_TERM list = enif_make_list(env, 0);
  for (size_t i = c->index.count; i-- > 0;) list = enif_make_list_cell(env, xt_make_entry(env, c, i), list);
  xt_checkpoint_leave(resource);
  return xt_make_ok(env, list);
}

/* checkpoint_entry(checkpoint, name) :: {:ok, [%Entry{}], 0} | {:error, e}     all that have the name */
ERL_NIF_TERM xt_nif_checkpoint_entry(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  ErlNifBinary name;
  xt_error error;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_inspect_binary(env, argv[1], &name))
    return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  const xt_checkpoint *c = &resource->opened->checkpoint;
  ERL_NIF_TERM list = enif_make_list(env, 0);
  const size_t *last = xt_table_get(&c->index.names, name.data, name.size);
  int shown = 0;
  for (size_t next = last ? *last + 1 : 0; next && shown < 20; next = c->index.same[next - 1], shown++)
    list = enif_make_list_cell(env, xt_make_entry(env, c, next - 1), list);
  xt_checkpoint_leave(resource);
  return xt_make_ok(env, list);
}

static ERL_NIF_TERM make_storage(ErlNifEnv *env, const xt_storage *storage) {
  ERL_NIF_TERM keys[] = {xt_am_key, xt_am_location, xt_am_nbytes};
  ERL_NIF_TERM values[] = {xt_make_text(env, storage->key, storage->key_size),
                           xt_make_text(env, storage->location, storage->location_size),
                           enif_make_uint64(env, storage->bytes)};
  return xt_make_struct(env, keys, values, 3);
}

static ERL_NIF_TERM make_info(ErlNifEnv *env, const xt_checkpoint *c) {
  ERL_NIF_TERM keys[] = {xt_am_alignment,      xt_am_byteorder, xt_am_compression, xt_am_format,
                         xt_am_format_version, xt_am_metadata,  xt_am_next_offset, xt_am_version};
  const char *texts[] = {c->alignment, c->format_version, c->version};
  ERL_NIF_TERM terms[3], metadata;
  for (int i = 0; i < 3; i++) terms[i] = *texts[i] ? xt_make_text(env, texts[i], strlen(texts[i])) : xt_am_nil;
  if (!c->metadata || !xt_make_node(env, c, c->metadata, &metadata)) metadata = enif_make_new_map(env);
  ERL_NIF_TERM values[] = {terms[0],
                           c->big_endian ? xt_am_big : xt_am_little,
                           c->unpacked ? xt_am_gzip : xt_am_nil,
                           enif_make_atom(env, xt_checkpoint_format(c)),
                           terms[1],
                           metadata,
                           c->next ? enif_make_uint64(env, c->next) : xt_am_nil,
                           terms[2]};
  return xt_make_struct(env, keys, values, 8);
}

/* checkpoint_about(checkpoint) :: {:ok, {info, [storage], [record name]}, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_about(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  xt_error error;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource)) return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  const xt_checkpoint *c = &resource->opened->checkpoint;
  ERL_NIF_TERM storages = enif_make_list(env, 0), records = storages;
  for (size_t i = c->rebuild.storage_count; i-- > 0;)
    storages = enif_make_list_cell(env, make_storage(env, &c->rebuild.storages[i]), storages);
  const xt_records *d = &c->directory;
  for (size_t i = d->count; i-- > 0;) {
    const xt_record *entry = &d->list[i];
    bool below = entry->name_size >= d->root_size && !memcmp(entry->name, d->list[0].name, d->root_size);
    size_t skip = below ? d->root_size : 0;
    records = enif_make_list_cell(env, xt_make_text(env, entry->name + skip, entry->name_size - skip), records);
  }
  ERL_NIF_TERM info = make_info(env, c);
  xt_checkpoint_leave(resource);
  return xt_make_ok(env, enif_make_tuple3(env, info, storages, records));
}
