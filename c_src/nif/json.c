/* The core's strict JSON reader, for index files. */
#include "core/pickle/node_json.h"
#include "nif/checkpoint.h"
#include "nif/table.h"
#include "nif/term.h"

/* json_decode(text) :: {:ok, term, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_json_decode(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifBinary text;
  xt_error error;
  xt_arena arena = {.limit = 1 << 20};
  xt_node *root;
  ERL_NIF_TERM term;
  (void)argc;
  if (!enif_inspect_binary(env, argv[0], &text)) return enif_make_badarg(env);
  arena.limit += 64 * text.size;
  xt_status status = xt_node_from_json(text.data, text.size, &arena, &root, &error);
  if (status == XT_STATUS_ok && !xt_make_node(env, NULL, root, &term))
    status = xt_error_set(&error, XT_STATUS_no_memory, "no memory for the JSON text");
  xt_arena_free(&arena);
  return status == XT_STATUS_ok ? xt_make_ok(env, term) : xt_make_error(env, &error);
}
