/* Loading of the NIF library: the NIF table and the resource types. LibTorch is loaded afterwards, by native_load/2
 * (libtorch.c). */
#include "core/memory/reaper.h"
#include "nif/table.h"
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

static bool open_resources(ErlNifEnv *env) {
  for (size_t i = 0; i < sizeof resources / sizeof *resources; i++) {
    ErlNifResourceTypeInit init = *resources[i].callbacks;
    init.members = 4; /* dtor, stop, down and dyncall */
    *resources[i].type = enif_init_resource_type(env, resources[i].name, &init, ERL_NIF_RT_CREATE, NULL);
    if (!*resources[i].type) return false;
  }
  return true;
}

static int load(ErlNifEnv *env, void **priv_data, ERL_NIF_TERM load_info) {
  (void)priv_data, (void)load_info;
  xt_term_load(env);
  if (!xt_reaper_start()) return 1;
  return open_resources(env) ? 0 : 2;
}

#define XT_NIF_ENTRY(name, arity, scheduler) {#name, arity, xt_nif_##name, scheduler},
static ErlNifFunc table[] = {XT_NIFS(XT_NIF_ENTRY)};
#undef XT_NIF_ENTRY

/* There is no upgrade function: live tensors belong to the library that created them. Loading another version fails and
 * the running one stays in use. */
ERL_NIF_INIT(Elixir.ExTorch.Native, table, load, NULL, NULL, NULL)
