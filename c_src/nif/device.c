/* Devices: their number and their memory. */
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* device_count(:cuda | :mps) :: integer */
ERL_NIF_TERM xt_nif_device_count(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  if (argv[0] == xt_am_cuda) return enif_make_int(env, xt_torch->cuda_count());
  if (argv[0] == xt_am_mps) return enif_make_int(env, xt_torch->has_mps());
  return enif_make_badarg(env);
}

/* device_memory(cuda index) :: {:ok, {free, total}, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_device_memory(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_error error;
  size_t free_bytes, total;
  int index;
  (void)argc;
  if (!enif_get_int(env, argv[0], &index) || index < 0) return enif_make_badarg(env);
  if (xt_torch->cuda_memory(index, &free_bytes, &total, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  return xt_make_ok(env, enif_make_tuple2(env, enif_make_uint64(env, free_bytes), enif_make_uint64(env, total)));
}
