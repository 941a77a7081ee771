/* Loading of the NIF library: the NIF table and the resource types. LibTorch is loaded afterwards, by native_load/3
 * (libtorch.c). */
#include "core/memory/reaper.h"
#include "core/os/exit_guard.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

#define XT_DEFINE_RESOURCE(name) ErlNifResourceType *xt_##name##_type;
XT_RESOURCES(XT_DEFINE_RESOURCE)
#undef XT_DEFINE_RESOURCE

#define XT_RESOURCE_ENTRY(name) {"extorch_" #name, &xt_##name##_callbacks, &xt_##name##_type},
static const struct {
  const char *name;
  const ErlNifResourceTypeInit *callbacks;
  ErlNifResourceType **type;
} resources[] = {XT_RESOURCES(XT_RESOURCE_ENTRY)};
#undef XT_RESOURCE_ENTRY

static bool open_resources(ErlNifEnv *env, ErlNifResourceFlags flags) {
  for (size_t i = 0; i < sizeof resources / sizeof *resources; i++) {
    ErlNifResourceTypeInit init = *resources[i].callbacks;
    init.members = 4; /* dtor, stop, down and dyncall */
    *resources[i].type = enif_init_resource_type(env, resources[i].name, &init, flags, NULL);
    if (!*resources[i].type) return false;
  }
  return true;
}

static char instance; /* its address identifies this copy of the library in the process */

/* OTP 26 and newer announce a halt before the process exits: calls can then end, and a load of LibTorch complete. */
#if ERL_NIF_MAJOR_VERSION > 2 || ERL_NIF_MINOR_VERSION >= 17
static void on_halt(void *priv_data) {
  (void)priv_data;
  xt_exit_guard_halt();
}
static void set_on_halt(ErlNifEnv *env) { enif_set_option(env, ERL_NIF_OPT_ON_HALT, on_halt); }
#else
static void set_on_halt(ErlNifEnv *env) { (void)env; }
#endif

static int load(ErlNifEnv *env, void **priv_data, ERL_NIF_TERM load_info) {
  (void)load_info;
  *priv_data = &instance;
  xt_term_load(env);
  if (!xt_reaper_start()) return 1;
  set_on_halt(env);
  return open_resources(env, ERL_NIF_RT_CREATE) ? 0 : 2;
}

/* Called when the module is loaded again while its old code exists. Tensors belong to the copy of the library that
 * created them, so the new module takes over only if it has the same copy. A library with the same path is the same
 * copy even if the file was replaced; one with another path is not, and is refused. */
static int upgrade(ErlNifEnv *env, void **priv_data, void **old_priv_data, ERL_NIF_TERM load_info) {
  (void)load_info;
  if (*old_priv_data != &instance) return 1;
  *priv_data = &instance;
  return open_resources(env, ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER) ? 0 : 2;
}

/* No NIF runs if LibTorch could not be loaded: the table contains these functions, which raise ExTorch.Error then. If
 * loading it was deferred, the NIFs run that need core alone. */
#define XT_NIF_GATE(name, loaded)                                                            \
  static ERL_NIF_TERM gate_##name(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {     \
    return loaded ? xt_nif_##name(env, argc, argv) : xt_raise_error(env, &xt_torch_failure); \
  }
#define XT_CORE_GATE(name, arity, scheduler) XT_NIF_GATE(name, (xt_torch || xt_torch_deferred))
#define XT_TORCH_GATE(name, arity, scheduler) XT_NIF_GATE(name, xt_torch)
XT_CORE_NIFS(XT_CORE_GATE)
XT_TORCH_NIFS(XT_TORCH_GATE)
#undef XT_NIF_GATE
#undef XT_CORE_GATE
#undef XT_TORCH_GATE

#define XT_NIF_ENTRY(name, arity, scheduler) {#name, arity, gate_##name, scheduler},
static ErlNifFunc table[] = {{"native_load", 3, xt_nif_native_load, XT_DIRTY_IO},
                             {"native_defer", 0, xt_nif_native_defer, XT_NORMAL},
                             XT_NIFS(XT_NIF_ENTRY)};
#undef XT_NIF_ENTRY

ERL_NIF_INIT(Elixir.ExTorch.Native, table, load, NULL, upgrade, NULL)
