/* The counters and the budget of native memory. */
#include "core/memory/memory.h"

#include <string.h>

#include "core/memory/device_memory.h"
#include "core/os/background.h"
#include "nif/table.h"
#include "nif/term.h"

/* memory_live() :: %{tensors: n, bytes: n, device: n, mapped: n, leased: n, threads: n} */
ERL_NIF_TERM xt_nif_memory_live(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  ERL_NIF_TERM keys[] = {xt_am_tensors, xt_am_bytes, xt_am_device, xt_am_mapped, xt_am_leased, xt_am_threads};
  ERL_NIF_TERM values[] = {enif_make_int64(env, atomic_load(&xt_memory_live.tensors)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.bytes)),
                           enif_make_int64(env, xt_device_memory_total()),
                           enif_make_int64(env, atomic_load(&xt_memory_live.mapped)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.leased)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.threads))};
  return xt_make_struct(env, keys, values, 6);
}

/* memory_device_live(device) :: bytes */
ERL_NIF_TERM xt_nif_memory_device_live(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_device device;
  (void)argc;
  if (!xt_get_device(env, argv[0], &device)) return enif_make_badarg(env);
  return enif_make_int64(env, xt_device_memory_live(device));
}

static ERL_NIF_TERM make_budget(ErlNifEnv *env, int64_t bytes) {
  return bytes == INT64_MAX ? xt_am_infinity : enif_make_int64(env, bytes);
}

static bool get_budget(ErlNifEnv *env, ERL_NIF_TERM term, int64_t *bytes) {
  ErlNifSInt64 number = INT64_MAX;
  if (term != xt_am_infinity && (!enif_get_int64(env, term, &number) || number < 0)) return false;
  *bytes = number;
  return true;
}

/* memory_budget() :: bytes | :infinity */
ERL_NIF_TERM xt_nif_memory_budget(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  return make_budget(env, xt_memory_budget());
}

/* memory_device_budget(device) :: bytes | :infinity */
ERL_NIF_TERM xt_nif_memory_device_budget(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_device device;
  (void)argc;
  if (!xt_get_device(env, argv[0], &device)) return enif_make_badarg(env);
  return make_budget(env, xt_device_memory_budget(device));
}

/* memory_set_device_budget(device | :all, bytes | :infinity) :: :ok */
ERL_NIF_TERM xt_nif_memory_set_device_budget(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_device device;
  int64_t bytes;
  bool all = argv[0] == xt_am_all;
  (void)argc;
  if ((!all && !xt_get_device(env, argv[0], &device)) || !get_budget(env, argv[1], &bytes))
    return enif_make_badarg(env);
  if (all) xt_device_memory_set_budgets(bytes);
  else xt_device_memory_set_budget(device, bytes);
  return xt_am_ok;
}

/* memory_set_budget(bytes | :infinity) :: :ok */
ERL_NIF_TERM xt_nif_memory_set_budget(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  int64_t bytes;
  (void)argc;
  if (!get_budget(env, argv[0], &bytes)) return enif_make_badarg(env);
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
