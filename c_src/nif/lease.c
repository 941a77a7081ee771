/* Leases keep memory for a backend that stores only its address. */
#include "core/memory/lease.h"

#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* lease_keep(tensor) :: {:ok, address, 0} | {:error, e}     keeps the memory until lease_release(address) */
ERL_NIF_TERM xt_nif_lease_keep(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  xt_tensor *handle;
  xt_error error;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &resource)) return enif_make_badarg(env);
  xt_status status = xt_tensor_take(resource, &handle, &error);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  status = xt_tensor_check_plain(&handle->info, &error);
  if (status == XT_STATUS_ok && !xt_lease_keep(handle->info.data, handle))
    status = xt_error_set(&error, XT_STATUS_no_memory, "out of memory while adding a lease");
  if (status != XT_STATUS_ok) {
    xt_tensor_drop(handle);
    return xt_make_error(env, &error);
  }
  return xt_make_ok(env, enif_make_uint64(env, (uintptr_t)handle->info.data));
}

/* lease_release(address) :: boolean     false if there is no lease of the address */
ERL_NIF_TERM xt_nif_lease_release(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 address;
  (void)argc;
  if (!enif_get_uint64(env, argv[0], &address)) return enif_make_badarg(env);
  xt_tensor *handle = xt_lease_release((void *)(uintptr_t)address);
  if (handle) xt_tensor_drop(handle);
  return xt_make_bool(handle != NULL);
}
