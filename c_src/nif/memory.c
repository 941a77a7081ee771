/* The counters and the budget of native memory. */
#include "core/memory/memory.h"

#include "nif/table.h"
#include "nif/term.h"

/* memory_live() :: %{tensors: n, bytes: n, mapped: n, threads: n} */
ERL_NIF_TERM xt_nif_memory_live(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  ERL_NIF_TERM keys[] = {xt_am_tensors, xt_am_bytes, xt_am_mapped, xt_am_threads};
  ERL_NIF_TERM values[] = {enif_make_int64(env, atomic_load(&xt_memory_live.tensors)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.bytes)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.mapped)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.threads))};
  return xt_make_struct(env, keys, values, 4);
}

/* memory_budget() :: bytes | :infinity */
ERL_NIF_TERM xt_nif_memory_budget(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  int64_t budget = xt_memory_budget();
  return budget == INT64_MAX ? xt_am_infinity : enif_make_int64(env, budget);
}

/* memory_set_budget(bytes | :infinity) :: :ok */
ERL_NIF_TERM xt_nif_memory_set_budget(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifSInt64 bytes = INT64_MAX;
  (void)argc;
  if (argv[0] != xt_am_infinity && (!enif_get_int64(env, argv[0], &bytes) || bytes < 0)) return enif_make_badarg(env);
  xt_memory_set_budget(bytes);
  return xt_am_ok;
}
