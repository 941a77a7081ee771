/* Checkpoints whose bytes Elixir reads (ExTorch.Source): which bytes are needed, and what they make.
 *
 * where → {:header, offset, size}: the record's header is to be read and given to source_reader_check_header, then
 * asked again where → {:bytes, offset, size}: what the tensor or record is made of
 */
#include <string.h>

#include "nif/checkpoint.h"
#include "nif/materialize.h"
#include "nif/region_binary.h"
#include "nif/table.h"
#include "nif/tensor.h"

/* ---- Opening ---- */

/* {:need, offset, size} while bytes are missing, :open afterwards. */
static ERL_NIF_TERM make_need(ErlNifEnv *env, const xt_need *need) {
  if (!need->size) return xt_am_open;
  return enif_make_tuple3(env, xt_am_need, enif_make_uint64(env, need->offset), enif_make_uint64(env, need->size));
}

/* source_reader_open(size, options) :: {:ok, {checkpoint, need}, 0} | {:error, e}     for sources that Elixir reads */
ERL_NIF_TERM xt_nif_source_reader_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 size;
  xt_checkpoint_options opts;
  xt_error error;
  (void)argc;
  if (!enif_get_uint64(env, argv[0], &size) || !xt_get_checkpoint_options(env, argv[1], &opts))
    return enif_make_badarg(env);
  xt_checkpoint_handle *handle = xt_checkpoint_handle_new();
  if (!handle) {
    xt_error_set(&error, XT_STATUS_no_memory, "no memory to open the checkpoint");
    return xt_make_error(env, &error);
  }
  xt_checkpoint_begin(&handle->checkpoint, size, opts.offset, &opts.limits, opts.strict, opts.verify, &error);
  xt_status status = xt_checkpoint_step(&handle->checkpoint, &handle->need, &error);
  if (status != XT_STATUS_ok) {
    xt_checkpoint_handle_free(&handle->reapable);
    return xt_make_error(env, &error);
  }
  ERL_NIF_TERM need = make_need(env, &handle->need);
  return xt_make_ok(env, enif_make_tuple2(env, xt_make_checkpoint(env, handle), need));
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
  xt_checkpoint_handle *handle = resource->handle;
  xt_status status = XT_STATUS_ok;
  if (handle->open || !handle->need.size || bytes.size != handle->need.size)
    status = xt_error_set(&error, XT_STATUS_io, "the source gave %zu bytes where %zu were asked for", bytes.size,
                          handle->need.size);
  if (status == XT_STATUS_ok) {
    memcpy(handle->need.to, bytes.data, bytes.size);
    status = xt_checkpoint_step(&handle->checkpoint, &handle->need, &error);
  }
  if (status != XT_STATUS_ok) handle->need = (xt_need){0, 0, NULL};
  if (status == XT_STATUS_ok && !handle->need.size) handle->open = true;
  ERL_NIF_TERM need = make_need(env, &handle->need);
  xt_checkpoint_leave(resource);
  return status == XT_STATUS_ok ? xt_make_ok(env, need) : xt_make_error(env, &error);
}

/* ---- Reading ---- */

/* What is asked for: an entry by its index, or a record by its name. */
static bool get_target(ErlNifEnv *env, ERL_NIF_TERM term, const xt_checkpoint *c, xt_record **record,
                       const xt_tensor_desc **tensor) {
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
  *record = xt_checkpoint_find(c, (char *)name.data, name.size);
  return true;
}

/* source_reader_locate(checkpoint, index | record's name, whole?) :: {:ok, {:header | :bytes, offset, size} | nil, 0} |
 * {:error, e} */
ERL_NIF_TERM xt_nif_source_reader_locate(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  xt_record *record;
  const xt_tensor_desc *tensor;
  xt_error error;
  bool whole;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !xt_get_bool(env, argv[2], &whole)) return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_checkpoint *c = &resource->handle->checkpoint;
  bool known = get_target(env, argv[1], c, &record, &tensor);
  ERL_NIF_TERM kind = xt_am_bytes;
  uint64_t offset = 0, size = 0;
  if (known && record) {
    uint64_t data = atomic_load(&record->data_offset);
    xt_need need = xt_checkpoint_header_need(record);
    if (!data) {
      kind = xt_am_header;
      offset = need.offset, size = need.size;
    } else if (tensor && !whole) {
      xt_record_reader reader = {.checkpoint = c};
      xt_record_reader_span(&reader, tensor, data, &offset, &size);
    } else {
      offset = data, size = record->packed;
    }
  }
  xt_checkpoint_leave(resource);
  if (!known) return enif_make_badarg(env);
  if (!record) return xt_make_ok(env, xt_am_nil);
  if (offset >= XT_INLINE) size = 0; /* it is in memory */
  return xt_make_ok(env, enif_make_tuple3(env, kind, enif_make_uint64(env, offset), enif_make_uint64(env, size)));
}

/* source_reader_check_header(checkpoint, index | record's name, header) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_source_reader_check_header(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  xt_record *record;
  const xt_tensor_desc *tensor;
  ErlNifBinary header;
  xt_error error;
  uint64_t data;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_inspect_binary(env, argv[2], &header))
    return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_checkpoint *c = &resource->handle->checkpoint;
  bool fits =
      get_target(env, argv[1], c, &record, &tensor) && record && header.size == xt_checkpoint_header_need(record).size;
  xt_status status = fits ? xt_checkpoint_check_header(record, header.data, &data, &error) : XT_STATUS_ok;
  xt_checkpoint_leave(resource);
  if (!fits) return enif_make_badarg(env);
  return status == XT_STATUS_ok ? xt_make_ok(env, xt_am_ok) : xt_make_error(env, &error);
}

/* source_reader_decode(checkpoint, index | record's name, verify?, offset, binary)
 *   :: {:ok, tensor | %RawTensor{} | binary, bytes} |
 * {:error, e}
 *
 * The binary has the bytes at that offset; a tensor shares it where nothing has to be done to them. */
ERL_NIF_TERM xt_nif_source_reader_decode(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  xt_record *record;
  const xt_tensor_desc *t;
  ErlNifUInt64 offset;
  xt_error error;
  xt_tensor *tensor = NULL;
  xt_view view;
  bool verify;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !xt_get_bool(env, argv[2], &verify) ||
      !enif_get_uint64(env, argv[3], &offset) || !enif_is_binary(env, argv[4]))
    return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  const xt_checkpoint *c = &resource->handle->checkpoint;
  bool fits = get_target(env, argv[1], c, &record, &t);
  xt_record_reader reader = xt_checkpoint_handle_reader(resource->handle, env, verify);
  reader.memory = fits && record ? xt_pin_binary(argv[4]) : NULL;
  reader.memory_at = offset;
  xt_storage_origin from = {c, &reader, NULL};
  ERL_NIF_TERM made = xt_am_nil;
  xt_status status = XT_STATUS_ok;
  if (fits && t && t->part_count) {
    status = xt_error_set(&error, XT_STATUS_unsupported,
                          "a tensor of several storages (sparse, quantized per channel) is read from a path or a "
                          "binary, not from a source");
  } else if (fits && record && !reader.memory) {
    status = xt_error_set(&error, XT_STATUS_no_memory, "no memory to pin the bytes");
  } else if (fits && t && record && !xt_torch->has_dtype(t->dtype)) {
    status = xt_record_reader_view(&reader, t, &view, &error);
    if (status == XT_STATUS_ok) made = xt_materialize_raw(env, t, &view);
  } else if (fits && t) {
    status = xt_materialize_tensor(&from, t, &tensor, &error);
  } else if (fits && record) {
    xt_region *region;
    status = xt_record_reader_whole(&reader, record, &region, &error);
    if (status == XT_STATUS_ok) made = xt_make_region_binary(env, region, region->data, record->size);
  }
  xt_region_drop_later(reader.memory);
  xt_checkpoint_leave(resource);
  if (!fits) return enif_make_badarg(env);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  return xt_make_ok(env, tensor ? xt_make_tensor(env, tensor) : made);
}
