/* The counters and the budget of native memory. */
#include "core/memory/memory.h"

#include <string.h>

#include "core/os/background.h"
#include "nif/table.h"
#include "nif/term.h"

/* memory_live() :: %{tensors: n, bytes: n, mapped: n, leased: n, threads: n} */
ERL_NIF_TERM xt_nif_memory_live(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  ERL_NIF_TERM keys[] = {xt_am_tensors, xt_am_bytes, xt_am_mapped, xt_am_leased, xt_am_threads};
  ERL_NIF_TERM values[] = {enif_make_int64(env, atomic_load(&xt_memory_live.tensors)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.bytes)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.mapped)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.leased)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.threads))};
  return xt_make_struct(env, keys, values, 5);
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

static const char *const uses[] = {
#define XT_USE_NAME(name) #name,
    XT_BACKGROUND_USES(XT_USE_NAME)
#undef XT_USE_NAME
};

static bool get_use(ErlNifEnv *env, ERL_NIF_TERM term, xt_background_use *use) {
  char name[32];
  if (!enif_get_atom(env, term, name, sizeof name, ERL_NIF_LATIN1)) return false;
  for (*use = 0; *use < XT_BACKGROUND_COUNT; ++*use)
    if (!strcmp(uses[*use], name)) return true;
  return false;
}

/* memory_set_background([:prefault | :checksum | :block_cache]) :: :ok     turns these on and the others off */
ERL_NIF_TERM xt_nif_memory_set_background(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  bool on[XT_BACKGROUND_COUNT] = {false};
  ERL_NIF_TERM head, list = argv[0];
  xt_background_use use;
  (void)argc;
  while (enif_get_list_cell(env, list, &head, &list)) {
    if (!get_use(env, head, &use)) return enif_make_badarg(env);
    on[use] = true;
  }
  if (!enif_is_empty_list(env, list)) return enif_make_badarg(env);
  for (use = 0; use < XT_BACKGROUND_COUNT; use++) xt_background_enable(use, on[use]);
  return xt_am_ok;
}
