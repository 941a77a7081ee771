/* Describes an open checkpoint: names, entries, metadata, storages and records. */
#include <stdlib.h>
#include <string.h>

#include "core/base/array.h"
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
  size_t depth, path_room, room;
  const char *location;
  ERL_NIF_TERM device;
} entry_maker;

static bool reserve_path(entry_maker *m, size_t depth) {
  return xt_array_reserve(&m->path, &m->path_room, depth, sizeof *m->path) &&
         xt_array_reserve(&m->keys, &m->room, depth, sizeof *m->keys);
}

static void free_maker(entry_maker *m) {
  free(m->path);
  free(m->keys);
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

static ERL_NIF_TERM make_kind(ErlNifEnv *env, const xt_checkpoint *c, const xt_tensor_desc *t) {
  if (t->layout != XT_LAYOUT_STRIDED) return enif_make_atom(env, xt_layout_name(t->layout));
  if (t->storage == XT_NO_STORAGE || !c->records[t->storage]) return xt_am_meta;
  if (t->bare) return xt_am_storage;
  return t->quantized ? xt_am_quantized : t->parameter ? xt_am_parameter : xt_am_tensor;
}

static bool make_entry(entry_maker *m, size_t i, ERL_NIF_TERM *out) {
  ErlNifEnv *env = m->env;
  const xt_checkpoint *c = m->c;
  const xt_index_entry *entry = &c->index.entries[i];
  const xt_tensor_desc *t = entry->tensor;
  const xt_storage *storage = t->storage == XT_NO_STORAGE ? NULL : &c->storages.list[t->storage];
  bool sparse = t->layout != XT_LAYOUT_STRIDED;
  const xt_storage *located = sparse ? &c->storages.list[t->more->parts[t->part_count - 1]->storage] : storage;
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
      make_kind(env, c, t),
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

static ERL_NIF_TERM make_no_memory(ErlNifEnv *env) {
  return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while describing the checkpoint");
}

static ERL_NIF_TERM keys(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  const xt_index *index = &resource->handle->checkpoint.index;
  ERL_NIF_TERM list = enif_make_list(env, 0);
  (void)argv;
  for (size_t i = index->count; i-- > 0;)
    list = enif_make_list_cell(env, xt_make_text(env, index->entries[i].name, index->entries[i].name_size), list);
  return xt_make_ok(env, list);
}

/* checkpoint_keys(checkpoint) :: {:ok, [name], 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_keys(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  return xt_checkpoint_run_by_size(env, "checkpoint_keys", xt_nif_checkpoint_keys, argc, argv, keys);
}

static bool make_entries(entry_maker *maker, ERL_NIF_TERM *list) {
  ERL_NIF_TERM entry;
  bool made = true;
  *list = enif_make_list(maker->env, 0);
  for (size_t i = maker->c->index.count; made && i-- > 0;) {
    made = make_entry(maker, i, &entry);
    if (made) *list = enif_make_list_cell(maker->env, entry, *list);
  }
  return made;
}

/* The list of the entries with the name. */
static bool make_named(entry_maker *maker, const ErlNifBinary *name, ERL_NIF_TERM *list) {
  const xt_index *index = &maker->c->index;
  const size_t *last = xt_table_get(&index->names, name->data, name->size);
  ERL_NIF_TERM entry;
  int count = 0;
  bool made = true;
  *list = enif_make_list(maker->env, 0);
  for (size_t next = last ? *last + 1 : 0; made && next && count < XT_MAX_SAME_NAME;
       next = index->same[next - 1], count++) {
    made = make_entry(maker, next - 1, &entry);
    if (made) *list = enif_make_list_cell(maker->env, entry, *list);
  }
  return made;
}

bool xt_make_named_entries(ErlNifEnv *env, const xt_checkpoint *c, const ErlNifBinary *name, ERL_NIF_TERM *list) {
  entry_maker maker = {.env = env, .c = c};
  bool made = make_named(&maker, name, list);
  free_maker(&maker);
  return made;
}

/* Makes a list with a list of entries for each name. Sets *valid to false if `names` is not a list of binaries. */
static bool make_all_named(entry_maker *maker, ERL_NIF_TERM names, bool *valid, ERL_NIF_TERM *out) {
  ERL_NIF_TERM head, named, reversed = enif_make_list(maker->env, 0);
  ErlNifBinary name;
  while (enif_get_list_cell(maker->env, names, &head, &names)) {
    if (!enif_inspect_binary(maker->env, head, &name)) return *valid = false;
    if (!make_named(maker, &name, &named)) return false;
    reversed = enif_make_list_cell(maker->env, named, reversed);
  }
  *valid = enif_is_empty_list(maker->env, names);
  return enif_make_reverse_list(maker->env, reversed, out);
}

static bool is_short_list(ErlNifEnv *env, ERL_NIF_TERM list) {
  enum { SHORT = 16 };
  ERL_NIF_TERM head;
  for (int i = 0; i < SHORT; i++)
    if (!enif_get_list_cell(env, list, &head, &list)) return true;
  return enif_is_empty_list(env, list);
}

static ERL_NIF_TERM entries(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  entry_maker maker = {.env = env, .c = &resource->handle->checkpoint};
  ERL_NIF_TERM list;
  bool valid = true;
  bool made = argv[1] == xt_am_all ? make_entries(&maker, &list) : make_all_named(&maker, argv[1], &valid, &list);
  free_maker(&maker);
  if (!valid) return enif_make_badarg(env);
  return made ? xt_make_ok(env, list) : make_no_memory(env);
}

/* checkpoint_entries(checkpoint, :all | [name]) :: {:ok, [%Entry{}] | [[%Entry{}]], 0} | {:error, e}     for names, the
 * entries of each: none, one, or several, at most XT_MAX_SAME_NAME */
ERL_NIF_TERM xt_nif_checkpoint_entries(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  bool on_normal = enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER;
  if (on_normal && argv[1] != xt_am_all && !is_short_list(env, argv[1]))
    return enif_schedule_nif(env, "checkpoint_entries", XT_DIRTY_CPU, xt_nif_checkpoint_entries, argc, argv);
  return xt_checkpoint_run_by_size(env, "checkpoint_entries", xt_nif_checkpoint_entries, argc, argv, entries);
}

static ERL_NIF_TERM make_storage(ErlNifEnv *env, const xt_storage *storage) {
  ERL_NIF_TERM keys[] = {xt_am_key, xt_am_location, xt_am_nbytes};
  ERL_NIF_TERM values[] = {xt_make_text(env, storage->key, storage->key_size),
                           xt_make_text(env, storage->location, storage->location_size),
                           enif_make_uint64(env, storage->bytes)};
  return xt_make_struct(env, keys, values, 3);
}

static ERL_NIF_TERM metadata(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  const xt_checkpoint *c = &resource->handle->checkpoint;
  ERL_NIF_TERM keys[] = {xt_am_alignment, xt_am_byteorder,      xt_am_checksums, xt_am_compression, xt_am_constants,
                         xt_am_format,    xt_am_format_version, xt_am_metadata,  xt_am_next_offset, xt_am_version};
  const char *texts[] = {c->alignment, c->format_version, c->version};
  ERL_NIF_TERM terms[3], own;
  (void)argv;
  for (int i = 0; i < 3; i++) terms[i] = *texts[i] ? xt_make_text(env, texts[i], strlen(texts[i])) : xt_am_nil;
  if (!c->metadata) own = enif_make_new_map(env);
  else if (!xt_make_node(env, c, c->metadata, &own)) return make_no_memory(env);
  ERL_NIF_TERM values[] = {terms[0],
                           c->big_endian ? xt_am_big : xt_am_little,
                           c->checksums == XT_CHECKSUMS_NONE      ? xt_am_nil
                           : c->checksums == XT_CHECKSUMS_PRESENT ? xt_am_present
                                                                  : xt_am_absent,
                           c->unpacked ? xt_am_gzip : xt_am_nil,
                           c->is_torchscript ? enif_make_uint64(env, c->constants) : xt_am_nil,
                           enif_make_atom(env, xt_checkpoint_format(c)),
                           terms[1],
                           own,
                           c->next ? enif_make_uint64(env, c->next) : xt_am_nil,
                           terms[2]};
  return xt_make_ok(env, xt_make_struct(env, keys, values, 10));
}

/* checkpoint_metadata(checkpoint) :: {:ok, map, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_metadata(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  return xt_checkpoint_run_by_size(env, "checkpoint_metadata", xt_nif_checkpoint_metadata, argc, argv, metadata);
}

static ERL_NIF_TERM storages(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  const xt_checkpoint *c = &resource->handle->checkpoint;
  ERL_NIF_TERM list = enif_make_list(env, 0);
  (void)argv;
  for (size_t i = c->storages.count; i-- > 0;)
    list = enif_make_list_cell(env, make_storage(env, &c->storages.list[i]), list);
  return xt_make_ok(env, list);
}

/* checkpoint_storages(checkpoint) :: {:ok, [map], 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_storages(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  return xt_checkpoint_run_by_size(env, "checkpoint_storages", xt_nif_checkpoint_storages, argc, argv, storages);
}

static ERL_NIF_TERM records(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  const xt_records *d = &resource->handle->checkpoint.directory;
  ERL_NIF_TERM list = enif_make_list(env, 0);
  (void)argv;
  for (size_t i = d->count; i-- > 0;) {
    const xt_record *record = &d->list[i];
    bool in_root = record->name_size >= d->root_size && !memcmp(record->name, d->list[0].name, d->root_size);
    size_t skip = in_root ? d->root_size : 0;
    list = enif_make_list_cell(env, xt_make_text(env, record->name + skip, record->name_size - skip), list);
  }
  return xt_make_ok(env, list);
}

/* checkpoint_records(checkpoint) :: {:ok, [name], 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_records(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  return xt_checkpoint_run_by_size(env, "checkpoint_records", xt_nif_checkpoint_records, argc, argv, records);
}
