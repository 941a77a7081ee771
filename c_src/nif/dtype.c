/* Dtypes: which ones the linked LibTorch supports. */
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* dtype_supported(dtype) :: boolean */
ERL_NIF_TERM xt_nif_dtype_supported(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_dtype dtype;
  (void)argc;
  if (!xt_get_dtype(env, argv[0], &dtype)) return enif_make_badarg(env);
  return xt_make_bool(xt_torch->has_dtype(dtype));
}
