/* Loading of LibTorch, its version, threads and random seed. */
#include <stdlib.h>
#include <string.h>

#include "core/memory/frozen.h"
#include "core/memory/memory.h"
#include "core/os/exit_guard.h"
#include "core/os/libraries.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

const xt_torch_api *xt_torch;
xt_error xt_torch_failure = {.status = XT_STATUS_not_loaded, .offset = -1, .message = "LibTorch is not loaded"};
bool xt_torch_deferred;

static void count_tensors(int delta) { atomic_fetch_add(&xt_memory_live.tensors, delta); }

static xt_status alloc_status(void) {
  switch (xt_memory_refused()) {
  case XT_REFUSED_BUDGET: return XT_STATUS_limit;
  case XT_REFUSED_MACHINE: return XT_STATUS_no_memory;
  default: return XT_STATUS_ok;
  }
}

static const xt_torch_host host = {
    .abi = XT_TORCH_ABI,
    .enter = xt_exit_guard_enter,
    .leave = xt_exit_guard_leave,
    .alloc = xt_memory_alloc,
    .free = xt_memory_free,
    .alloc_status = alloc_status,
    .write = xt_frozen_write,
    .freeze = xt_frozen_add,
    .unfreeze = xt_frozen_remove,
    .writers = xt_frozen_writers,
    .tensor_count = count_tensors,
    .arena_alloc = xt_arena_alloc,
};

/* The copies of LibTorch in this process: another NIF library may have loaded one. Libraries with the same name share
 * the first one that was loaded; libraries with different names are all loaded. */
typedef struct {
  ErlNifEnv *env;
  ERL_NIF_TERM paths;
  const char *first;
} libraries;

static void find_libtorch(void *object, const char *path) {
  static const char prefix[] = "libtorch_cpu."; /* followed by so or dylib */
  libraries *found = object;
  const char *slash = strrchr(path, '/');
  if (strncmp(slash ? slash + 1 : path, prefix, sizeof prefix - 1)) return;
  found->first = path;
  found->paths = enif_make_list_cell(found->env, xt_make_text(found->env, path, strlen(path)), found->paths);
}

static libraries loaded_libtorchs(ErlNifEnv *env) {
  libraries found = {env, enif_make_list(env, 0), NULL};
  xt_libraries_each(find_libtorch, &found);
  return found;
}

static xt_status open_torch(const char *path, const char *earlier, xt_error *error) {
  if (xt_torch) return XT_STATUS_ok; /* loaded by an earlier instance of the module */
  const char *reason;
  void *library = xt_libraries_open(path, &reason);
  if (!library)
    return xt_error_set(error, XT_STATUS_not_loaded,
                        "cannot load LibTorch: %s%s%s. Build ExTorch again: mix deps.compile extorch --force", reason,
                        earlier ? ". Another library already loaded its own LibTorch into this VM, and both must be "
                                  "built with the same one: "
                                : "",
                        earlier ? earlier : "");
  xt_torch_open_fn *open;
  *(void **)&open = xt_libraries_symbol(library, XT_TORCH_SYMBOL);
  if (!open)
    return xt_error_set(error, XT_STATUS_not_loaded, "%s belongs to another version of ExTorch; build it again", path);
  return open(&host, &xt_torch, error);
}

/* native_load(path of extorch_torch.so, threads) :: {:ok, [path of libtorch_cpu], 0} | {:error, e}
 *
 * Called once, while the module is loaded, before any other NIF can be called, or after native_defer by the only
 * process that calls NIFs. 0 threads means LibTorch's default. */
ERL_NIF_TERM xt_nif_native_load(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[XT_PATH_SIZE];
  int threads;
  (void)argc;
  if (!xt_get_path(env, argv[0], path) || !enif_get_int(env, argv[1], &threads) || threads < 0)
    return enif_make_badarg(env);
  if (!xt_exit_guard_begin_load()) return xt_make_failure(env, XT_STATUS_stopping, "the node is stopping");
  xt_status status = open_torch(path, loaded_libtorchs(env).first, &xt_torch_failure);
  xt_exit_guard_end_load();
  if (status != XT_STATUS_ok) return xt_make_error(env, &xt_torch_failure);
  if (threads) xt_torch->set_num_threads(threads);
  return xt_make_ok(env, loaded_libtorchs(env).paths);
}

/* native_defer() :: :ok
 *
 * Called instead of native_load, or before it: until then, only the NIFs run that need core alone. */
ERL_NIF_TERM xt_nif_native_defer(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)env, (void)argc, (void)argv;
  xt_torch_deferred = true;
  return xt_am_ok;
}

/* info() :: {version, threads} */
ERL_NIF_TERM xt_nif_info(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  return enif_make_tuple2(env, xt_make_text(env, xt_torch->version, strlen(xt_torch->version)),
                          enif_make_int(env, xt_torch->num_threads()));
}

/* manual_seed(integer) :: :ok */
ERL_NIF_TERM xt_nif_manual_seed(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 seed;
  (void)argc;
  if (!enif_get_uint64(env, argv[0], &seed)) return enif_make_badarg(env);
  xt_torch->manual_seed(seed);
  return xt_am_ok;
}
