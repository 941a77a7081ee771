/* Reads one tensor or one record of an open checkpoint. */
#include "nif/checkpoint.h"
#include "nif/frozen_binary.h"
#include "nif/materialize.h"
#include "nif/table.h"
#include "nif/tensor.h"

enum { BRIEF_BYTES = 16 << 10, BRIEF_PERCENT = 2 };

/* The bytes of a small tensor and of its header in the file. */
typedef struct {
  uint8_t bytes[BRIEF_BYTES + 1024];
  xt_region regions[XT_MAX_RANGES];
  xt_piece pieces[XT_MAX_RANGES];
} brief_file;

/* Reads what the page cache has of a tensor, without waiting for the disk, and lets the reader copy it from there. */
static bool read_cached(xt_record_reader *reader, const xt_tensor_desc *t, brief_file *file) {
  xt_range ranges[XT_MAX_RANGES];
  size_t count = xt_record_reader_ranges(reader, t, ranges), used = 0;
  for (size_t i = 0; i < count; i++) {
    uint8_t *to = file->bytes + used;
    if (ranges[i].size > sizeof file->bytes - used ||
        !xt_file_read_cached(reader->file, ranges[i].offset, to, ranges[i].size))
      return false;
    file->regions[i] = (xt_region){.data = to, .size = ranges[i].size};
    file->pieces[i] = (xt_piece){ranges[i].offset, &file->regions[i]};
    used += ranges[i].size;
  }
  reader->pieces = file->pieces;
  reader->piece_count = count;
  reader->copies = true;
  return true;
}

/* Whether the tensor can be read in microseconds: a small one, in memory or cached, but not in a mapped file. */
static bool is_brief(const xt_checkpoint_handle *handle, const xt_tensor_desc *t, xt_record_reader *reader,
                     brief_file *file) {
  const xt_checkpoint *c = &handle->checkpoint;
  if (handle->mapped || c->unpacked || reader->verify || !xt_materialize_is_plain(c, t) ||
      c->records[t->storage]->method != XT_RECORD_STORED || xt_tensor_desc_bytes(t) > BRIEF_BYTES)
    return false;
  return handle->memory || read_cached(reader, t, file);
}

/* Sets *entry to the entry's index, or *others to the entries with the name if there is not exactly one. Returns false
 * for a term of the wrong type. */
static bool find_entry(ErlNifEnv *env, const xt_checkpoint *c, ERL_NIF_TERM term, size_t *entry, ERL_NIF_TERM *others) {
  ErlNifUInt64 i;
  ErlNifBinary name;
  *others = 0;
  if (enif_get_uint64(env, term, &i)) return (*entry = i) < c->index.count;
  if (!enif_inspect_binary(env, term, &name)) return false;
  const size_t *last = xt_table_get(&c->index.names, name.data, name.size);
  if (last && !c->index.same[*last]) *entry = *last;
  else if (!xt_make_named_entries(env, c, &name, others)) *others = enif_make_list(env, 0);
  return true;
}

static ERL_NIF_TERM tensor(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_handle *handle = resource->handle;
  xt_checkpoint *c = &handle->checkpoint;
  ERL_NIF_TERM others;
  xt_tensor *tensor = NULL;
  xt_error error;
  size_t entry = 0;
  bool verify;
  if (!xt_get_bool(env, argv[2], &verify) || !find_entry(env, c, argv[1], &entry, &others))
    return enif_make_badarg(env);
  if (others) return xt_make_ok(env, others);
  const xt_tensor_desc *t = c->index.entries[entry].tensor;
  bool on_dirty = enif_thread_type() != ERL_NIF_THR_NORMAL_SCHEDULER;
  xt_record_reader reader = xt_checkpoint_handle_reader(handle, env, verify);
  brief_file file;
  if (!on_dirty && !is_brief(handle, t, &reader, &file))
    return enif_schedule_nif(env, "checkpoint_tensor", XT_DIRTY_IO, xt_nif_checkpoint_tensor, 3, argv);
  if (!on_dirty) enif_consume_timeslice(env, BRIEF_PERCENT);
  xt_status status = xt_materialize_supported(&(xt_storage_origin){c, &reader, NULL}, t, &tensor, &error);
  bool created = status == XT_STATUS_ok;
  status = xt_checkpoint_check_file(handle, status, &error);
  if (created && status != XT_STATUS_ok) xt_tensor_drop(tensor);
  return xt_make_tensor_result(env, status, tensor, &error);
}

/* checkpoint_tensor(checkpoint, name | entry's index, verify?) :: {:ok, tensor | [%Entry{}], bytes} | {:error, e}
 *
 * Returns the entries with the name if there are none or several. */
ERL_NIF_TERM xt_nif_checkpoint_tensor(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return xt_checkpoint_run(env, argv, tensor);
}

/* Reads bytes [from, from + size) of a record; up to its end if `to_end`. */
static xt_status read_range(const xt_record_reader *reader, xt_record *record, uint64_t from, uint64_t size,
                            bool to_end, xt_region **out, xt_error *error) {
  if (to_end) size = from <= record->size ? record->size - from : 0;
  if (from > record->size || size > record->size - from)
    return xt_error_set(error, XT_STATUS_bad_argument,
                        "bytes %llu to %llu are outside the record, which has %llu bytes", (unsigned long long)from,
                        (unsigned long long)(from + size), (unsigned long long)record->size);
  *out = xt_region_new(size ? size : 1, 0);
  if (!*out) return xt_region_refused(error);
  (*out)->size = size;
  xt_status status = xt_record_reader_range(reader, record, from, size, (*out)->data, error);
  if (status != XT_STATUS_ok) xt_region_drop(*out);
  return status;
}

static ERL_NIF_TERM read_record(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_handle *handle = resource->handle;
  ErlNifBinary name;
  ErlNifUInt64 from, size = 0;
  ERL_NIF_TERM binary = xt_am_nil;
  xt_region *region;
  xt_error error;
  bool verify, to_end = argv[3] == xt_am_nil;
  if (!enif_inspect_binary(env, argv[1], &name) || !enif_get_uint64(env, argv[2], &from) ||
      (!to_end && !enif_get_uint64(env, argv[3], &size)) || !xt_get_bool(env, argv[4], &verify))
    return enif_make_badarg(env);
  xt_record_reader reader = xt_checkpoint_handle_reader(handle, env, verify);
  xt_record *record = xt_checkpoint_find(&handle->checkpoint, (char *)name.data, name.size);
  xt_status status = XT_STATUS_ok;
  if (record) {
    status = read_range(&reader, record, from, size, to_end, &region, &error);
    if (status == XT_STATUS_ok) binary = xt_make_region_binary(env, region, region->data, region->size);
  }
  return xt_make_result(env, xt_checkpoint_check_file(handle, status, &error), binary, &error);
}

/* checkpoint_read_record(checkpoint, record's name, from, size | nil, verify?)
 *   :: {:ok, binary | nil, bytes} | {:error, e}     nil if there is no such record */
ERL_NIF_TERM xt_nif_checkpoint_read_record(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return xt_checkpoint_run(env, argv, read_record);
}
