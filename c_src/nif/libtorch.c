/* Loading of LibTorch, its version, threads and random seed. */
#include <stdlib.h>
#include <string.h>

#include "core/memory/device_memory.h"
#include "core/memory/frozen.h"
#include "core/memory/memory.h"
#include "core/os/exit_guard.h"
#include "core/os/libraries.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"
#include "plain/plain.h"

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
    .charge = xt_memory_charge,
    .discharge = xt_memory_discharge,
    .device_charge = xt_device_memory_charge,
    .device_discharge = xt_device_memory_discharge,
};

/* ---- Other LibTorchs ----
 *
 * Two LibTorchs in one process crash it while the second one is loaded, whichever that is: their dispatchers are unique
 * symbols, which the loader merges. So LibTorch is loaded only if no other one is loaded, and none is expected. */

/* The file that extorch_torch.so was linked with; not defined in a build without LibTorch (EXTORCH_TORCH=0). */
#ifdef XT_TORCH_LIBRARY
static const bool built_with_torch = true;
#else
#define XT_TORCH_LIBRARY ""
static const bool built_with_torch = false;
#endif
static const char own_library[] = XT_TORCH_LIBRARY;

enum { MAX_LIBRARIES = 8 };

/* The paths belong to the loader. They stay valid: LibTorch is never unloaded, because it has unique symbols. */
typedef struct {
  const char *paths[MAX_LIBRARIES];
  int count;
} libraries;

static void find_libtorch(void *object, const char *path) {
  static const char prefix[] = "libtorch_cpu."; /* followed by so or dylib */
  libraries *found = object;
  const char *slash = strrchr(path, '/');
  if (found->count == MAX_LIBRARIES || strncmp(slash ? slash + 1 : path, prefix, sizeof prefix - 1)) return;
  found->paths[found->count++] = path;
}

static libraries loaded_libtorchs(void) {
  libraries found = {.count = 0};
  xt_libraries_each(find_libtorch, &found);
  return found;
}

static ERL_NIF_TERM make_paths(ErlNifEnv *env, const libraries *found) {
  ERL_NIF_TERM list = enif_make_list(env, 0);
  for (int i = 0; i < found->count; i++)
    list = enif_make_list_cell(env, xt_make_text(env, found->paths[i], strlen(found->paths[i])), list);
  return list;
}

static xt_status another(const char *what, const char *path, xt_error *error) {
  return xt_error_set(
      error, XT_STATUS_not_loaded,
      "%s LibTorch %s, but ExTorch was built with %s. Two LibTorchs in one VM crash it. Build both with "
      "the same one: set LIBTORCH_DIR to the directory that contains its include and lib, and run mix "
      "deps.compile extorch torchx --force",
      what, path, own_library);
}

static xt_status check_others(const char *expected, xt_error *error) {
  libraries loaded = loaded_libtorchs();
  for (int i = 0; i < loaded.count; i++)
    if (!xt_libraries_shares(own_library, loaded.paths[i]))
      return another("another library has loaded the", loaded.paths[i], error);
  if (*expected && !xt_libraries_shares(own_library, expected)) return another("Torchx uses the", expected, error);
  return XT_STATUS_ok;
}

/* ---- Loading ---- */

#ifndef XT_TORCH_VERSION_TEXT
#define XT_TORCH_VERSION_TEXT "" /* for static analysis */
#endif
#define REBUILD "Build ExTorch again: mix deps.compile extorch --force"
#define OTHER_LIBTORCH                                        \
  "The LibTorch that was found is not " XT_TORCH_VERSION_TEXT \
  ", with which ExTorch was built. Install that one, or put " \
  "it into the release (config :extorch, bundle_libtorch: true). " REBUILD
#define NO_LIBRARY                                                                 \
  "ExTorch was built with LibTorch " XT_TORCH_VERSION_TEXT " in " XT_TORCH_LIBRARY \
  ". Install it there, or put it into "                                            \
  "the release (config :extorch, bundle_libtorch: true). " REBUILD
#define OLD_SYSTEM                                                                                                   \
  "The C or C++ library of this system is older than that of the system where ExTorch was built. Build on a system " \
  "like "                                                                                                            \
  "this one. " REBUILD

/* What to do, by what the loader says: glibc's words, then those of macOS. */
static const char *advice(const char *reason) {
  static const struct {
    const char *text, *advice;
  } list[] = {
      {"version `", OLD_SYSTEM},
      {"undefined symbol", OTHER_LIBTORCH},
      {"cannot open shared object file", NO_LIBRARY},
      {"Symbol not found", OTHER_LIBTORCH},
      {"Library not loaded", NO_LIBRARY},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++)
    if (strstr(reason, list[i].text)) return list[i].advice;
  return REBUILD;
}

static xt_status open_torch(const char *path, xt_error *error) {
  const char *reason;
  void *library = xt_libraries_open(path, &reason);
  if (!library)
    return xt_error_set(error, XT_STATUS_not_loaded, "cannot load LibTorch: %s. %s", reason, advice(reason));
  xt_torch_open_fn *open;
  *(void **)&open = xt_libraries_symbol(library, XT_TORCH_SYMBOL);
  if (!open)
    return xt_error_set(error, XT_STATUS_not_loaded, "%s belongs to another version of ExTorch; build it again", path);
  return open(&host, &xt_torch, error);
}

/* Tensors that are memory (plain/), where there is no LibTorch, or none is wanted. */
static void open_plain(void) {
  xt_torch = xt_plain_open(
      built_with_torch ? "LibTorch is switched off: remove EXTORCH_TORCH=0 from the environment, or torch: false "
                         "from the configuration of :extorch, and restart the node"
                       : "This build of ExTorch has no LibTorch: build it again without EXTORCH_TORCH=0, with "
                         "mix deps.compile extorch --force");
}

/* native_load(path of extorch_torch.so | "" for none, path of Torchx's libtorch_cpu | "", threads) ::
 *   {:ok, [path of libtorch_cpu], 0} | {:error, e}
 *
 * Called once, while the module is loaded, before any other NIF can be called, or after native_defer by the only
 * process that calls NIFs. 0 threads means LibTorch's default. */
ERL_NIF_TERM xt_nif_native_load(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[XT_PATH_SIZE], expected[XT_PATH_SIZE];
  int threads;
  (void)argc;
  if (!xt_get_path(env, argv[0], path) || !xt_get_path(env, argv[1], expected) ||
      !enif_get_int(env, argv[2], &threads) || threads < 0)
    return enif_make_badarg(env);
  if (!xt_exit_guard_begin_load()) return xt_make_failure(env, XT_STATUS_stopping, "the node is stopping");
  xt_status status = XT_STATUS_ok;
  if (!xt_torch && (!built_with_torch || !*path)) open_plain();
  if (!xt_torch) { /* else it was loaded by an earlier instance of the module */
    status = check_others(expected, &xt_torch_failure);
    if (status == XT_STATUS_ok) status = open_torch(path, &xt_torch_failure);
  }
  xt_exit_guard_end_load();
  if (status != XT_STATUS_ok) return xt_make_error(env, &xt_torch_failure);
  if (threads) xt_torch->set_num_threads(threads);
  libraries loaded = loaded_libtorchs();
  return xt_make_ok(env, make_paths(env, &loaded));
}

/* native_defer() :: :ok
 *
 * Called instead of native_load, or before it: until then, only the NIFs run that need core alone. */
ERL_NIF_TERM xt_nif_native_defer(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)env, (void)argc, (void)argv;
  xt_torch_deferred = true;
  return xt_am_ok;
}

/* info() :: {version | nil, threads}     nil without LibTorch */
ERL_NIF_TERM xt_nif_info(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  const char *version = xt_torch->version;
  return enif_make_tuple2(env, version ? xt_make_text(env, version, strlen(version)) : xt_am_nil,
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
