/* Decodes JSON with the strict parser of the core; used for index files. */
#include "core/pickle/node_json.h"
#include "nif/object.h"
#include "nif/table.h"
#include "nif/term.h"

/* json_decode(text) :: {:ok, term, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_json_decode(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifBinary text;
  xt_error error;
  xt_arena arena = {.limit = 1 << 20};
  xt_node *root;
  ERL_NIF_TERM term = xt_am_nil;
  (void)argc;
  if (!enif_inspect_binary(env, argv[0], &text)) return enif_make_badarg(env);
  arena.limit += 64 * text.size;
  xt_status status = xt_node_from_json(text.data, text.size, &arena, &root, &error);
  if (status == XT_STATUS_ok && !xt_make_node(env, NULL, root, &term))
    status = xt_error_set(&error, XT_STATUS_no_memory, "out of memory while decoding JSON");
  xt_arena_free(&arena);
  return xt_make_result(env, status, term, &error);
}
