/* Loading: the NIF table and the resource types. LibTorch comes after, through torch_open (nif_torch.c). */
#include "core/memory/reaper.h"
#include "nif/archive.h"
#include "nif/atomic_file.h"
#include "nif/blob.h"
#include "nif/checkpoint.h"
#include "nif/loader.h"
#include "nif/memory_collect.h"
#include "nif/saver.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/tensor_binary.h"
#include "nif/term.h"

static int load(ErlNifEnv *env, void **priv_data, ERL_NIF_TERM load_info) {
  (void)priv_data, (void)load_info;
  xt_term_register(env);
  if (!xt_reaper_start()) return 1;
  if (!xt_tensor_register(env) || !xt_tensor_binary_register(env) || !xt_blob_register(env) ||
      !xt_checkpoint_register(env) || !xt_batch_load_register(env) || !xt_saver_register(env) ||
      !xt_loader_register(env) || !xt_archive_register(env) || !xt_atomic_file_register(env) ||
      !xt_memory_collect_register(env))
    return 2;
  return 0;
}

#define XT_NIF_ENTRY(name, arity, scheduler) {#name, arity, xt_nif_##name, scheduler},
static ErlNifFunc table[] = {XT_NIFS(XT_NIF_ENTRY)};
#undef XT_NIF_ENTRY

/* No upgrade: live tensors belong to the code that made them, so loading another version beside it is refused and the
 * running one goes on. */
ERL_NIF_INIT(Elixir.ExTorch.Native, table, load, NULL, NULL, NULL)
