/* Reads JSON files with the strict parser of the core; used for index files. */
#include <stdlib.h>

#include "core/checkpoint/index.h"
#include "core/formats/json.h"
#include "core/formats/node_json.h"
#include "core/memory/memory.h"
#include "core/os/file.h"
#include "nif/object.h"
#include "nif/table.h"
#include "nif/term.h"

/* Reads the whole file, which must be a regular file of at most `limit` bytes. The caller frees *text. */
static xt_status read_file(const char *path, uint64_t limit, uint8_t **text, size_t *size, xt_error *error) {
  xt_file file = {.fd = -1};
  xt_status status = xt_file_open(&file, path, error);
  if (status == XT_STATUS_ok && file.size > limit)
    status = xt_error_set(error, XT_STATUS_limit, "the file has %llu bytes; at most %llu are read as JSON",
                          (unsigned long long)file.size, (unsigned long long)limit);
  if (status == XT_STATUS_ok) {
    *size = (size_t)file.size;
    *text = malloc(*size ? *size : 1);
    status = *text ? xt_file_read(&file, 0, *text, *size, error)
                   : xt_error_set(error, XT_STATUS_no_memory, "out of memory while reading JSON");
  }
  xt_file_close(&file);
  return status;
}

/* Checks that the terms fit into the allowance. */
static xt_status weigh(xt_node *root, xt_arena *arena, xt_error *error) {
  xt_index index = {0};
  xt_index_limits limits = {UINT64_MAX, XT_JSON_DEPTH + 1};
  xt_status status = xt_index_build(&index, arena, root, &limits, error);
  xt_index_free(&index);
  return status;
}

/* Makes the result of a NIF of JSON text, or of the error if `status` is not ok. */
static ERL_NIF_TERM parse(ErlNifEnv *env, const uint8_t *text, size_t size, xt_status status, xt_error *error) {
  ERL_NIF_TERM term = xt_am_nil;
  xt_node *root;
  xt_allowance allowance = {.limit = xt_allowance_for(size, 1)};
  xt_arena arena = {.allowance = &allowance};
  if (status == XT_STATUS_ok) status = xt_node_from_json(text, size, &arena, &root, error);
  if (status == XT_STATUS_ok) status = weigh(root, &arena, error);
  if (status == XT_STATUS_ok && !xt_make_node(env, NULL, root, &term))
    status = xt_error_set(error, XT_STATUS_no_memory, "out of memory while decoding JSON");
  status = xt_allowance_explain(&allowance, status, error);
  xt_arena_free(&arena);
  xt_memory_taken(); /* resets the counter: nothing is kept */
  return xt_make_result(env, status, term, error);
}

/* json_read(path, most bytes) :: {:ok, term, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_json_read(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[XT_PATH_SIZE];
  ErlNifUInt64 limit;
  uint8_t *text = NULL;
  size_t size = 0;
  xt_error error;
  (void)argc;
  if (!xt_get_path(env, argv[0], path) || !enif_get_uint64(env, argv[1], &limit)) return enif_make_badarg(env);
  xt_status status = read_file(path, limit, &text, &size, &error);
  ERL_NIF_TERM result = parse(env, text, size, status, &error);
  free(text);
  return result;
}

/* json_parse(binary) :: {:ok, term, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_json_parse(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifBinary text;
  xt_error error;
  (void)argc;
  if (!enif_inspect_binary(env, argv[0], &text)) return enif_make_badarg(env);
  return parse(env, text.data, text.size, XT_STATUS_ok, &error);
}
