/* Reads one tensor or one record of an open checkpoint. */
#include "nif/checkpoint.h"
#include "nif/frozen_binary.h"
#include "nif/materialize.h"
#include "nif/table.h"
#include "nif/tensor.h"

static xt_status read_tensor(ErlNifEnv *env, xt_checkpoint_handle *handle, size_t entry, bool verify, xt_tensor **out,
                             xt_error *error) {
  const xt_checkpoint *c = &handle->checkpoint;
  const xt_tensor_desc *t = c->index.entries[entry].tensor;
  xt_record_reader reader = xt_checkpoint_handle_reader(handle, env, verify);
  xt_storage_origin origin = {c, &reader, NULL};
  if (!xt_torch->has_dtype(t->dtype))
    return xt_error_set(error, XT_STATUS_unsupported,
                        "dtype %s is not supported by the linked LibTorch (%s); read the bytes with "
                        "ExTorch.Checkpoint.read_storage/2",
                        xt_dtype_get(t->dtype)->name, xt_torch->version);
  xt_status status = xt_materialize_tensor(&origin, t, out, error);
  bool created = status == XT_STATUS_ok;
  status = xt_checkpoint_check_file(handle, status, error);
  if (created && status != XT_STATUS_ok) xt_tensor_drop(*out);
  return status;
}

/* checkpoint_tensor(checkpoint, entry's index, verify?) :: {:ok, tensor, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_tensor(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  ErlNifUInt64 entry;
  xt_tensor *tensor = NULL;
  xt_error error;
  bool verify;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_get_uint64(env, argv[1], &entry) ||
      !xt_get_bool(env, argv[2], &verify))
    return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  bool exists = entry < resource->handle->checkpoint.index.count;
  xt_status status = XT_STATUS_ok;
  if (exists) status = read_tensor(env, resource->handle, entry, verify, &tensor, &error);
  xt_checkpoint_leave(resource);
  return exists ? xt_make_tensor_result(env, status, tensor, &error) : enif_make_badarg(env);
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

/* checkpoint_read_record(checkpoint, record's name, from, size | nil, verify?)
 *   :: {:ok, binary | nil, bytes} | {:error, e}     nil if there is no such record */
ERL_NIF_TERM xt_nif_checkpoint_read_record(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  ErlNifBinary name;
  ErlNifUInt64 from, size = 0;
  ERL_NIF_TERM binary = xt_am_nil;
  xt_region *region;
  xt_error error;
  bool verify, to_end = argv[3] == xt_am_nil;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_inspect_binary(env, argv[1], &name) ||
      !enif_get_uint64(env, argv[2], &from) || (!to_end && !enif_get_uint64(env, argv[3], &size)) ||
      !xt_get_bool(env, argv[4], &verify))
    return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_checkpoint_handle *handle = resource->handle;
  xt_record_reader reader = xt_checkpoint_handle_reader(handle, env, verify);
  xt_record *record = xt_checkpoint_find(&handle->checkpoint, (char *)name.data, name.size);
  xt_status status = XT_STATUS_ok;
  if (record) {
    status = read_range(&reader, record, from, size, to_end, &region, &error);
    if (status == XT_STATUS_ok) binary = xt_make_region_binary(env, region, region->data, region->size);
  }
  status = xt_checkpoint_check_file(handle, status, &error);
  xt_checkpoint_leave(resource);
  return xt_make_result(env, status, binary, &error);
}
