/* One tensor or one record of an open checkpoint. */
#include "nif/checkpoint.h"
#include "nif/materialize.h"
#include "nif/region_binary.h"
#include "nif/table.h"
#include "nif/tensor.h"

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
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_checkpoint_handle *handle = resource->handle;
  const xt_checkpoint *c = &handle->checkpoint;
  if (i >= c->index.count) {
    xt_checkpoint_leave(resource);
    return enif_make_badarg(env);
  }
  const xt_tensor_desc *t = c->index.entries[i].tensor;
  xt_record_reader reader = xt_checkpoint_handle_reader(handle, env, verify);
  xt_storage_origin from = {c, &reader, NULL};
  xt_status status;
  if (!xt_torch->has_dtype(t->dtype))
    status = xt_error_set(&error, XT_STATUS_unsupported,
                          "%s is newer than the linked LibTorch (%s); read_storage has the bytes",
                          xt_dtype_get(t->dtype)->name, xt_torch->version);
  else status = xt_materialize_tensor(&from, t, &tensor, &error);
  bool made = status == XT_STATUS_ok;
  status = xt_checkpoint_check_file(handle, status, &error);
  if (made && status != XT_STATUS_ok) xt_tensor_drop(tensor);
  xt_checkpoint_leave(resource);
  return xt_return_tensor(env, status, tensor, &error);
}

/* checkpoint_read_record(checkpoint, record's name, from, size | nil, verify?) :: {:ok, binary, bytes} | {:ok, nil, 0}
 * |
 * {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_read_record(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
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
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_checkpoint_handle *handle = resource->handle;
  xt_record_reader reader = xt_checkpoint_handle_reader(handle, env, verify);
  xt_record *entry = xt_checkpoint_find(&handle->checkpoint, (char *)name.data, name.size);
  ERL_NIF_TERM binary = xt_am_nil;
  xt_status status = XT_STATUS_ok;
  if (entry) {
    if (argv[3] == xt_am_nil) size = from <= entry->size ? entry->size - from : 0;
    xt_region *region = from <= entry->size && size <= entry->size - from ? xt_region_new(size ? size : 1, 0) : NULL;
    if (!region && (from > entry->size || size > entry->size - from))
      status =
          xt_error_set(&error, XT_STATUS_bad_argument, "bytes %llu to %llu are not all in the record, which has %llu",
                       (unsigned long long)from, (unsigned long long)(from + size), (unsigned long long)entry->size);
    else if (!region) status = xt_region_refused(&error);
    else if ((status = xt_record_reader_range(&reader, entry, from, size, region->data, &error)) != XT_STATUS_ok)
      xt_region_drop(region);
    if (status == XT_STATUS_ok) binary = xt_make_region_binary(env, region, region->data, size);
  }
  status = xt_checkpoint_check_file(handle, status, &error);
  xt_checkpoint_leave(resource);
  return status == XT_STATUS_ok ? xt_make_ok(env, binary) : xt_make_error(env, &error);
}
