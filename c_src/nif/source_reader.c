/* Checkpoints whose bytes Elixir reads from an ExTorch.Source.
 *
 * Opening: source_reader_open and source_reader_fill return {:need, offset, size} until the checkpoint is open.
 * Reading: source_reader_locate returns the ranges of the file that a tensor or record needs, source_reader_decode
 * takes their bytes and returns the tensor or record.
 */
#include <string.h>

#include "core/formats/open.h"
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
  xt_checkpoint_handle *handle = xt_checkpoint_handle_new(&opts);
  if (!handle) return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while opening the checkpoint");
  xt_checkpoint_begin(&handle->checkpoint, size, opts.offset, &opts.limits, opts.strict, opts.verify);
  if (xt_open_step(&handle->checkpoint, &handle->need, &error) != XT_STATUS_ok) {
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
    status = xt_open_step(&handle->checkpoint, &handle->need, error);
  }
  if (status != XT_STATUS_ok) handle->need = (xt_need){0, 0, NULL};
  else if (!handle->need.size) handle->open = true;
  return status;
}

static ERL_NIF_TERM fill_need(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  ErlNifBinary bytes;
  xt_error error;
  if (!enif_inspect_binary(env, argv[1], &bytes)) return enif_make_badarg(env);
  xt_status status = fill(resource->handle, &bytes, &error);
  return xt_make_result(env, status, make_need(env, &resource->handle->need), &error);
}

/* source_reader_fill(checkpoint, binary) :: {:ok, need | :open, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_source_reader_fill(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return xt_checkpoint_run_exclusively(env, argv, fill_need);
}

/* ---- Reading ---- */

/* The entry or record to read. Both are NULL if there is no such record. */
typedef struct {
  const xt_tensor_desc *tensor;
  xt_record *record;
} target;

/* Decodes the index of an entry or the name of a record. */
static bool get_target(ErlNifEnv *env, ERL_NIF_TERM term, const xt_checkpoint *c, target *out) {
  ErlNifUInt64 i;
  ErlNifBinary name;
  *out = (target){NULL, NULL};
  if (enif_get_uint64(env, term, &i)) {
    if (i < c->index.count) out->tensor = c->index.entries[i].tensor;
    return out->tensor;
  }
  if (!enif_inspect_binary(env, term, &name)) return false;
  out->record = xt_checkpoint_find(c, (char *)name.data, name.size);
  return true;
}

static ERL_NIF_TERM locate(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  xt_record_reader reader = {.checkpoint = &resource->handle->checkpoint};
  ERL_NIF_TERM list = enif_make_list(env, 0);
  xt_range ranges[XT_MAX_RANGES];
  target target;
  if (!xt_get_bool(env, argv[2], &reader.verify) || !get_target(env, argv[1], reader.checkpoint, &target))
    return enif_make_badarg(env);
  if (!target.tensor && !target.record) return xt_make_ok(env, xt_am_nil);
  size_t count = target.tensor ? xt_record_reader_ranges(&reader, target.tensor, ranges)
                               : xt_record_reader_record_ranges(&reader, target.record, ranges);
  while (count-- > 0)
    list = enif_make_list_cell(
        env,
        enif_make_tuple2(env, enif_make_uint64(env, ranges[count].offset), enif_make_uint64(env, ranges[count].size)),
        list);
  return xt_make_ok(env, list);
}

/* source_reader_locate(checkpoint, entry's index | record's name, verify?)
 *   :: {:ok, [{offset, size}] | nil, 0} | {:error, e}     nil if there is no such record */
ERL_NIF_TERM xt_nif_source_reader_locate(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return xt_checkpoint_run(env, argv, locate);
}

/* Decodes [{offset, binary}] and pins the binaries. Returns bad_argument, without a message, for another term. */
static xt_status get_pieces(ErlNifEnv *env, ERL_NIF_TERM list, xt_piece *pieces, size_t *count, xt_error *error) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  ErlNifUInt64 at;
  int arity;
  for (*count = 0; enif_get_list_cell(env, list, &head, &list); (*count)++) {
    if (*count == XT_MAX_RANGES || !enif_get_tuple(env, head, &arity, &pair) || arity != 2 ||
        !enif_get_uint64(env, pair[0], &at) || !enif_is_binary(env, pair[1]))
      return XT_STATUS_bad_argument;
    pieces[*count] = (xt_piece){at, xt_region_from_binary(pair[1])};
    if (!pieces[*count].bytes) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while pinning the bytes");
  }
  return enif_is_empty_list(env, list) ? XT_STATUS_ok : XT_STATUS_bad_argument;
}

static xt_status decode_target(ErlNifEnv *env, const xt_record_reader *reader, const target *target, ERL_NIF_TERM *out,
                               xt_error *error) {
  xt_storage_origin origin = {reader->checkpoint, reader, NULL};
  xt_region *region;
  xt_tensor *tensor;
  xt_status status = target->tensor ? xt_materialize_supported(&origin, target->tensor, &tensor, error)
                                    : xt_record_reader_whole(reader, target->record, &region, error);
  if (status == XT_STATUS_ok)
    *out = target->tensor ? xt_make_tensor(env, tensor)
                          : xt_make_region_binary(env, region, region->data, target->record->size);
  return status;
}

static ERL_NIF_TERM decode(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  xt_piece pieces[XT_MAX_RANGES];
  target target;
  ERL_NIF_TERM value = xt_am_nil;
  xt_error error;
  bool verify;
  if (!xt_get_bool(env, argv[2], &verify) || !get_target(env, argv[1], &resource->handle->checkpoint, &target) ||
      (!target.tensor && !target.record))
    return enif_make_badarg(env);
  xt_record_reader reader = xt_checkpoint_handle_reader(resource->handle, env, verify);
  reader.pieces = pieces;
  xt_status status = get_pieces(env, argv[3], pieces, &reader.piece_count, &error);
  bool valid = status != XT_STATUS_bad_argument;
  if (status == XT_STATUS_ok) status = decode_target(env, &reader, &target, &value, &error);
  while (reader.piece_count-- > 0) xt_region_drop_later(pieces[reader.piece_count].bytes);
  return valid ? xt_make_result(env, status, value, &error) : enif_make_badarg(env);
}

/* source_reader_decode(checkpoint, entry's index | record's name, verify?, [{offset, binary}])
 *   :: {:ok, tensor | binary, bytes} | {:error, e}
 *
 * A tensor shares a binary if its bytes need no conversion. */
ERL_NIF_TERM xt_nif_source_reader_decode(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return xt_checkpoint_run(env, argv, decode);
}
