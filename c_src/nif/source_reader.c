/* Checkpoints whose bytes Elixir reads from an ExTorch.Source.
 *
 * Opening: source_reader_open and source_reader_fill return {:need, offset, size} until the checkpoint is open.
 * Reading: source_reader_locate returns {:header, offset, size} if the header of the record must be read and passed to
 * source_reader_check_header first, otherwise {:bytes, offset, size}: the bytes to pass to source_reader_decode.
 */
#include <string.h>

#include "nif/checkpoint.h"
#include "nif/frozen_binary.h"
#include "nif/materialize.h"
#include "nif/table.h"
#include "nif/tensor.h"

/* ---- Opening ---- */

/* {:need, offset, size} while bytes are missing, then :open. */
static ERL_NIF_TERM make_need(ErlNifEnv *env, const xt_need *need) {
  if (!need->size) return xt_am_open;
  return enif_make_tuple3(env, xt_am_need, enif_make_uint64(env, need->offset), enif_make_uint64(env, need->size));
}

/* source_reader_open(size, options) :: {:ok, {checkpoint, need | :open}, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_source_reader_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 size;
  xt_checkpoint_options opts;
  xt_error error;
  (void)argc;
  if (!enif_get_uint64(env, argv[0], &size) || !xt_get_checkpoint_options(env, argv[1], &opts))
    return enif_make_badarg(env);
  xt_checkpoint_handle *handle = xt_checkpoint_handle_new();
  if (!handle) return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while opening the checkpoint");
  xt_checkpoint_begin(&handle->checkpoint, size, opts.offset, &opts.limits, opts.strict, opts.verify, &error);
  if (xt_checkpoint_step(&handle->checkpoint, &handle->need, &error) != XT_STATUS_ok) {
    xt_checkpoint_handle_free(&handle->reapable);
    return xt_make_error(env, &error);
  }
  ERL_NIF_TERM need = make_need(env, &handle->need);
  return xt_make_ok(env, enif_make_tuple2(env, xt_make_checkpoint(env, handle), need));
}

/* Passes the bytes that were needed to the checkpoint, which may then need more. */
static xt_status fill(xt_checkpoint_handle *handle, const ErlNifBinary *bytes, xt_error *error) {
  xt_status status;
  if (handle->open || !handle->need.size || bytes->size != handle->need.size) {
    status = xt_error_set(error, XT_STATUS_io, "the source returned %zu bytes, expected %zu", bytes->size,
                          handle->need.size);
  } else {
    memcpy(handle->need.to, bytes->data, bytes->size);
    status = xt_checkpoint_step(&handle->checkpoint, &handle->need, error);
  }
  if (status != XT_STATUS_ok) handle->need = (xt_need){0, 0, NULL};
  else if (!handle->need.size) handle->open = true;
  return status;
}

/* source_reader_fill(checkpoint, binary) :: {:ok, need | :open, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_source_reader_fill(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  ErlNifBinary bytes;
  xt_error error;
  uint_least64_t idle = 0;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_inspect_binary(env, argv[1], &bytes))
    return enif_make_badarg(env);
  /* Enters exclusively: no other call can use a checkpoint that is not open yet. */
  if (!atomic_compare_exchange_strong(&resource->state, &idle, 2))
    return idle & 1 ? xt_make_failure(env, XT_STATUS_released, "the checkpoint is closed; open it again")
                    : xt_make_failure(env, XT_STATUS_busy, "another process is using this checkpoint");
  xt_status status = fill(resource->handle, &bytes, &error);
  ERL_NIF_TERM need = make_need(env, &resource->handle->need);
  xt_checkpoint_leave(resource);
  return xt_make_result(env, status, need, &error);
}

/* ---- Reading ---- */

/* The entry or record to read. */
typedef struct {
  const xt_tensor_desc *tensor; /* NULL for a record */
  xt_record *record;            /* NULL if there is no such record, or the tensor has no data */
} target;

/* Decodes the index of an entry or the name of a record. */
static bool get_target(ErlNifEnv *env, ERL_NIF_TERM term, const xt_checkpoint *c, target *out) {
  ErlNifUInt64 i;
  ErlNifBinary name;
  *out = (target){NULL, NULL};
  if (enif_get_uint64(env, term, &i)) {
    if (i >= c->index.count) return false;
    out->tensor = c->index.entries[i].tensor;
    if (out->tensor->storage != XT_NO_STORAGE) out->record = c->records[out->tensor->storage];
    return true;
  }
  if (!enif_inspect_binary(env, term, &name)) return false;
  out->record = xt_checkpoint_find(c, (char *)name.data, name.size);
  return true;
}

/* {:header | :bytes, offset, size}, or nil if there is nothing to read. */
static ERL_NIF_TERM make_location(ErlNifEnv *env, xt_checkpoint *c, const target *target, bool whole) {
  uint64_t offset, size;
  if (!target->record) return xt_am_nil;
  uint64_t data = atomic_load(&target->record->data_offset);
  if (!data) {
    xt_need need = xt_checkpoint_header_need(target->record);
    offset = need.offset, size = need.size;
  } else if (target->tensor && !whole) {
    xt_record_reader reader = {.checkpoint = c};
    xt_record_reader_span(&reader, target->tensor, data, &offset, &size);
  } else {
    offset = data, size = target->record->packed;
  }
  if (offset >= XT_INLINE) size = 0; /* the bytes are already in memory */
  return enif_make_tuple3(env, data ? xt_am_bytes : xt_am_header, enif_make_uint64(env, offset),
                          enif_make_uint64(env, size));
}

/* source_reader_locate(checkpoint, entry's index | record's name, whole?)
 *   :: {:ok, {:header | :bytes, offset, size} | nil, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_source_reader_locate(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  target target;
  ERL_NIF_TERM location = xt_am_nil;
  xt_error error;
  bool whole;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !xt_get_bool(env, argv[2], &whole)) return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_checkpoint *c = &resource->handle->checkpoint;
  bool valid = get_target(env, argv[1], c, &target);
  if (valid) location = make_location(env, c, &target, whole);
  xt_checkpoint_leave(resource);
  return valid ? xt_make_ok(env, location) : enif_make_badarg(env);
}

/* source_reader_check_header(checkpoint, entry's index | record's name, header) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_source_reader_check_header(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  target target;
  ErlNifBinary header;
  xt_error error;
  uint64_t data;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_inspect_binary(env, argv[2], &header))
    return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  bool valid = get_target(env, argv[1], &resource->handle->checkpoint, &target) && target.record &&
               header.size == xt_checkpoint_header_need(target.record).size;
  xt_status status = XT_STATUS_ok;
  if (valid) status = xt_checkpoint_check_header(target.record, header.data, &data, &error);
  xt_checkpoint_leave(resource);
  return valid ? xt_make_result(env, status, xt_am_ok, &error) : enif_make_badarg(env);
}

static xt_status decode_tensor(ErlNifEnv *env, const xt_record_reader *reader, const target *target, ERL_NIF_TERM *out,
                               xt_error *error) {
  const xt_tensor_desc *t = target->tensor;
  xt_storage_origin origin = {reader->checkpoint, reader, NULL};
  xt_tensor *tensor = NULL;
  xt_view view;
  xt_status status;
  if (t->part_count)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "cannot read a tensor of several storages (sparse, or quantized per channel) from a source; "
                        "read it from a path or a binary");
  if (target->record && !xt_torch->has_dtype(t->dtype)) {
    status = xt_record_reader_view(reader, t, &view, error);
    if (status == XT_STATUS_ok) *out = xt_materialize_raw(env, t, &view);
    return status;
  }
  status = xt_materialize_tensor(&origin, t, &tensor, error);
  if (status == XT_STATUS_ok) *out = xt_make_tensor(env, tensor);
  return status;
}

static xt_status decode_record(ErlNifEnv *env, const xt_record_reader *reader, xt_record *record, ERL_NIF_TERM *out,
                               xt_error *error) {
  xt_region *region;
  xt_status status = xt_record_reader_whole(reader, record, &region, error);
  if (status == XT_STATUS_ok) *out = xt_make_region_binary(env, region, region->data, record->size);
  return status;
}

/* `binary` holds the bytes of the file from `offset` on. */
static xt_status decode(ErlNifEnv *env, xt_record_reader *reader, const target *target, uint64_t offset,
                        ERL_NIF_TERM binary, ERL_NIF_TERM *out, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  reader->memory = target->record ? xt_region_from_binary(binary) : NULL;
  reader->memory_at = offset;
  if (target->record && !reader->memory)
    return xt_error_set(error, XT_STATUS_no_memory, "out of memory while pinning the bytes");
  if (target->tensor) status = decode_tensor(env, reader, target, out, error);
  else if (target->record) status = decode_record(env, reader, target->record, out, error);
  xt_region_drop_later(reader->memory);
  return status;
}

/* source_reader_decode(checkpoint, entry's index | record's name, verify?, offset, binary)
 *   :: {:ok, tensor | %RawTensor{} | binary | nil, bytes} | {:error, e}
 *
 * A tensor shares the binary if its bytes need no conversion. */
ERL_NIF_TERM xt_nif_source_reader_decode(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  target target;
  ErlNifUInt64 offset;
  ERL_NIF_TERM value = xt_am_nil;
  xt_error error;
  bool verify;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !xt_get_bool(env, argv[2], &verify) ||
      !enif_get_uint64(env, argv[3], &offset) || !enif_is_binary(env, argv[4]))
    return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_record_reader reader = xt_checkpoint_handle_reader(resource->handle, env, verify);
  bool valid = get_target(env, argv[1], &resource->handle->checkpoint, &target);
  xt_status status = valid ? decode(env, &reader, &target, offset, argv[4], &value, &error) : XT_STATUS_ok;
  xt_checkpoint_leave(resource);
  return valid ? xt_make_result(env, status, value, &error) : enif_make_badarg(env);
}
