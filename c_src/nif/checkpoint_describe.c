/* Describes an open checkpoint: names, entries, metadata, storages and records. */
#include <string.h>

#include "nif/checkpoint.h"
#include "nif/object.h"
#include "nif/table.h"

/* Makes entries. Terms that one entry has in common with the one before it are used again: the keys of its path (a key
 * may be large, and above many tensors) and the device. */
typedef struct {
  ErlNifEnv *env;
  const xt_checkpoint *c;
  const xt_path **path; /* the steps of the last entry's path */
  ERL_NIF_TERM *keys;   /* their terms */
  size_t depth, room;
  const char *location;
  ERL_NIF_TERM device;
} entry_maker;

static bool reserve_path(entry_maker *m, size_t depth) {
  if (depth <= m->room) return true;
  const xt_path **path = enif_realloc(m->path, 2 * depth * sizeof *path);
  if (path) m->path = path;
  ERL_NIF_TERM *keys = enif_realloc(m->keys, 2 * depth * sizeof *keys);
  if (keys) m->keys = keys;
  if (path && keys) m->room = 2 * depth;
  return path && keys;
}

static void free_maker(entry_maker *m) {
  enif_free(m->path);
  enif_free(m->keys);
}

static bool make_key(const entry_maker *m, const xt_path *step, ERL_NIF_TERM *out) {
  if (step->key) return xt_make_node(m->env, m->c, step->key, out);
  *out = enif_make_int64(m->env, step->position);
  return true;
}

static bool make_path(entry_maker *m, const xt_path *path, ERL_NIF_TERM *list) {
  size_t depth = 0;
  for (const xt_path *step = path; step; step = step->parent) depth++;
  if (!reserve_path(m, depth)) return false;
  *list = enif_make_list(m->env, 0);
  for (size_t i = depth; i-- > 0; path = path->parent) {
    if (i >= m->depth || m->path[i] != path) {
      if (!make_key(m, path, &m->keys[i])) return false;
      m->path[i] = path;
    }
    *list = enif_make_list_cell(m->env, m->keys[i], *list);
  }
  m->depth = depth;
  return true;
}

/* The name of a tensor in the outermost dict is its key. */
static ERL_NIF_TERM make_name(const entry_maker *m, const xt_index_entry *entry) {
  const xt_node *key = entry->path ? entry->path->key : NULL;
  bool is_key = key && key->kind == XT_NODE_TEXT && key->text.data == entry->name;
  return is_key ? m->keys[m->depth - 1] : xt_make_text(m->env, entry->name, entry->name_size);
}

static ERL_NIF_TERM make_device(entry_maker *m, const xt_storage *storage) {
  const char *location = storage ? storage->location : "meta";
  size_t size = storage ? storage->location_size : 4;
  if (m->location != location) m->device = xt_make_text(m->env, location, size);
  m->location = location;
  return m->device;
}

int64_t xt_tensor_desc_bytes(const xt_tensor_desc *t) {
  int64_t bytes = (int64_t)xt_dtype_get(t->dtype)->size;
  for (uint32_t d = 0; d < t->ndim && t->layout == XT_LAYOUT_STRIDED; d++) bytes *= t->sizes[d];
  if (t->layout != XT_LAYOUT_STRIDED) bytes = 0;
  for (uint32_t part = 0; part < t->part_count; part++) bytes += xt_tensor_desc_bytes(t->more->parts[part]);
  return bytes;
}

static ERL_NIF_TERM make_kind(const xt_checkpoint *c, const xt_tensor_desc *t) {
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

static bool make_entry(entry_maker *m, size_t i, ERL_NIF_TERM *out) {
  ErlNifEnv *env = m->env;
  const xt_checkpoint *c = m->c;
  const xt_index_entry *entry = &c->index.entries[i];
  const xt_tensor_desc *t = entry->tensor;
  const xt_storage *storage = t->storage == XT_NO_STORAGE ? NULL : &c->rebuild.storages[t->storage];
  bool sparse = t->layout != XT_LAYOUT_STRIDED;
  const xt_storage *located = sparse ? &c->rebuild.storages[t->more->parts[t->part_count - 1]->storage] : storage;
  ERL_NIF_TERM path;
  if (!make_path(m, entry->path, &path)) return false;
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_device,  xt_am_dtype,  xt_am_index, xt_am_kind,
                         xt_am_name,       xt_am_nbytes,  xt_am_offset, xt_am_path,  xt_am_requires_grad,
                         xt_am_shape,      xt_am_storage, xt_am_strides};
  ERL_NIF_TERM values[] = {
      xt_am_module_entry,
      make_device(m, located),
      xt_make_dtype(t->dtype),
      enif_make_uint64(env, i),
      make_kind(c, t),
      make_name(m, entry),
      enif_make_int64(env, xt_tensor_desc_bytes(t)),
      enif_make_int64(env, t->offset),
      path,
      xt_make_bool(t->requires_grad),
      xt_make_dims(env, t->sizes, (int)t->ndim),
      storage ? xt_make_text(env, storage->key, storage->key_size) : xt_am_nil,
      sparse ? xt_am_nil : xt_make_dims(env, t->strides, (int)t->ndim),
  };
  *out = xt_make_struct(env, keys, values, 13);
  return true;
}

/* The wrapper of the NIFs below: enters the checkpoint, makes the term and leaves. */
typedef bool describe_fn(ErlNifEnv *env, const xt_checkpoint *c, ERL_NIF_TERM *out);

static ERL_NIF_TERM make_no_memory(ErlNifEnv *env) {
  return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while describing the checkpoint");
}

static ERL_NIF_TERM describe(ErlNifEnv *env, ERL_NIF_TERM term, describe_fn *make) {
  xt_checkpoint_resource *resource;
  xt_error error;
  if (!xt_get_checkpoint(env, term, &resource)) return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  ERL_NIF_TERM value;
  bool made = make(env, &resource->handle->checkpoint, &value);
  xt_checkpoint_leave(resource);
  return made ? xt_make_ok(env, value) : make_no_memory(env);
}

static bool make_keys(ErlNifEnv *env, const xt_checkpoint *c, ERL_NIF_TERM *out) {
  ERL_NIF_TERM list = enif_make_list(env, 0);
  for (size_t i = c->index.count; i-- > 0;)
    list = enif_make_list_cell(env, xt_make_text(env, c->index.entries[i].name, c->index.entries[i].name_size), list);
  *out = list;
  return true;
}

/* checkpoint_keys(checkpoint) :: {:ok, [name], 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_keys(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return describe(env, argv[0], make_keys);
}

static bool make_entries(ErlNifEnv *env, const xt_checkpoint *c, ERL_NIF_TERM *list) {
  entry_maker maker = {.env = env, .c = c};
  ERL_NIF_TERM entry;
  bool made = true;
  *list = enif_make_list(env, 0);
  for (size_t i = c->index.count; made && i-- > 0;) {
    made = make_entry(&maker, i, &entry);
    if (made) *list = enif_make_list_cell(env, entry, *list);
  }
  free_maker(&maker);
  return made;
}

/* checkpoint_entries(checkpoint) :: {:ok, [%Entry{}], 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_entries(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return describe(env, argv[0], make_entries);
}

enum { MAX_ENTRIES = 20 };

/* checkpoint_entry(checkpoint, name) :: {:ok, [%Entry{}], 0} | {:error, e}     all entries with the name, at most
 * MAX_ENTRIES */
ERL_NIF_TERM xt_nif_checkpoint_entry(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  ErlNifBinary name;
  xt_error error;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_inspect_binary(env, argv[1], &name))
    return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  const xt_checkpoint *c = &resource->handle->checkpoint;
  entry_maker maker = {.env = env, .c = c};
  ERL_NIF_TERM list = enif_make_list(env, 0), entry;
  const size_t *last = xt_table_get(&c->index.names, name.data, name.size);
  int count = 0;
  bool made = true;
  for (size_t next = last ? *last + 1 : 0; made && next && count < MAX_ENTRIES;
       next = c->index.same[next - 1], count++) {
    made = make_entry(&maker, next - 1, &entry);
    if (made) list = enif_make_list_cell(env, entry, list);
  }
  free_maker(&maker);
  xt_checkpoint_leave(resource);
  return made ? xt_make_ok(env, list) : make_no_memory(env);
}

static ERL_NIF_TERM make_storage(ErlNifEnv *env, const xt_storage *storage) {
  ERL_NIF_TERM keys[] = {xt_am_key, xt_am_location, xt_am_nbytes};
  ERL_NIF_TERM values[] = {xt_make_text(env, storage->key, storage->key_size),
                           xt_make_text(env, storage->location, storage->location_size),
                           enif_make_uint64(env, storage->bytes)};
  return xt_make_struct(env, keys, values, 3);
}

static bool make_metadata(ErlNifEnv *env, const xt_checkpoint *c, ERL_NIF_TERM *out) {
  ERL_NIF_TERM keys[] = {xt_am_alignment,      xt_am_byteorder, xt_am_compression, xt_am_format,
                         xt_am_format_version, xt_am_metadata,  xt_am_next_offset, xt_am_version};
  const char *texts[] = {c->alignment, c->format_version, c->version};
  ERL_NIF_TERM terms[3], metadata;
  for (int i = 0; i < 3; i++) terms[i] = *texts[i] ? xt_make_text(env, texts[i], strlen(texts[i])) : xt_am_nil;
  if (!c->metadata) metadata = enif_make_new_map(env);
  else if (!xt_make_node(env, c, c->metadata, &metadata)) return false;
  ERL_NIF_TERM values[] = {terms[0],
                           c->big_endian ? xt_am_big : xt_am_little,
                           c->unpacked ? xt_am_gzip : xt_am_nil,
                           enif_make_atom(env, xt_checkpoint_format(c)),
                           terms[1],
                           metadata,
                           c->next ? enif_make_uint64(env, c->next) : xt_am_nil,
                           terms[2]};
  *out = xt_make_struct(env, keys, values, 8);
  return true;
}

/* checkpoint_metadata(checkpoint) :: {:ok, map, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_metadata(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return describe(env, argv[0], make_metadata);
}

static bool make_storages(ErlNifEnv *env, const xt_checkpoint *c, ERL_NIF_TERM *out) {
  ERL_NIF_TERM list = enif_make_list(env, 0);
  for (size_t i = c->rebuild.storage_count; i-- > 0;)
    list = enif_make_list_cell(env, make_storage(env, &c->rebuild.storages[i]), list);
  *out = list;
  return true;
}

/* checkpoint_storages(checkpoint) :: {:ok, [map], 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_storages(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return describe(env, argv[0], make_storages);
}

static bool make_records(ErlNifEnv *env, const xt_checkpoint *c, ERL_NIF_TERM *out) {
  const xt_records *d = &c->directory;
  ERL_NIF_TERM list = enif_make_list(env, 0);
  for (size_t i = d->count; i-- > 0;) {
    const xt_record *record = &d->list[i];
    bool in_root = record->name_size >= d->root_size && !memcmp(record->name, d->list[0].name, d->root_size);
    size_t skip = in_root ? d->root_size : 0;
    list = enif_make_list_cell(env, xt_make_text(env, record->name + skip, record->name_size - skip), list);
  }
  *out = list;
  return true;
}

/* checkpoint_records(checkpoint) :: {:ok, [name], 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_records(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return describe(env, argv[0], make_records);
}
