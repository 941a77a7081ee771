/* A NIF that only allocates and frees an environment: the baseline of blob.exs and op.exs. */
#include <erl_nif.h>

/* empty_call() :: :ok */
static ERL_NIF_TERM empty_call(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  enif_free_env(enif_alloc_env());
  return enif_make_atom(env, "ok");
}

static ErlNifFunc table[] = {{"empty_call", 0, empty_call, 0}};
ERL_NIF_INIT(Elixir.Bench.EmptyCall, table, NULL, NULL, NULL, NULL)
