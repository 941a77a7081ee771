/* Files that appear completely or not at all (core/os/atomic_file.h), written from Elixir. If the process dies before
 * it commits, the garbage collection of the resource closes the file. */
#include "core/os/atomic_file.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory/reaper.h"
#include "nif/busy.h"
#include "nif/table.h"
#include "nif/term.h"

/* Closed by the reaper thread, because closing can take long on a slow disk. */
typedef struct {
  xt_reapable reapable; /* must be first */
  xt_atomic_file file;
} open_file;

typedef struct {
  xt_busy busy;    /* entered by every call */
  open_file *open; /* NULL once it is closed */
} file_resource;

static void close_file(xt_reapable *self) {
  xt_atomic_file_close(&((open_file *)self)->file);
  free(self);
}

static void destroy_resource(ErlNifEnv *env, void *object) {
  file_resource *resource = object;
  (void)env;
  if (resource->open) xt_reaper_push(&resource->open->reapable);
}

const ErlNifResourceTypeInit xt_atomic_file_callbacks = {.dtor = destroy_resource};

static ERL_NIF_TERM make_file(ErlNifEnv *env, open_file *open) {
  file_resource *resource = enif_alloc_resource(xt_atomic_file_type, sizeof *resource);
  *resource = (file_resource){.open = open};
  ERL_NIF_TERM term = enif_make_resource(env, resource);
  enif_release_resource(resource);
  return term;
}

static open_file *new_file(void) {
  open_file *open = calloc(1, sizeof *open);
  if (open) open->reapable.run = close_file;
  return open;
}

static ERL_NIF_TERM no_memory(ErlNifEnv *env) {
  return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while opening the file");
}

/* atomic_file_open(path) :: {:ok, file, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_atomic_file_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[XT_PATH_SIZE];
  xt_error error;
  (void)argc;
  if (!xt_get_path(env, argv[0], path)) return enif_make_badarg(env);
  open_file *open = new_file();
  if (!open) return no_memory(env);
  if (xt_atomic_file_open(&open->file, path, &error) == XT_STATUS_ok) return xt_make_ok(env, make_file(env, open));
  close_file(&open->reapable);
  return xt_make_error(env, &error);
}

/* atomic_file_open_index(path) :: {:ok, {file, 16 random digits}, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_atomic_file_open_index(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[XT_PATH_SIZE];
  xt_error error;
  (void)argc;
  if (!xt_get_path(env, argv[0], path)) return enif_make_badarg(env);
  open_file *open = new_file();
  if (!open) return no_memory(env);
  if (xt_atomic_file_open_index(&open->file, path, &error) == XT_STATUS_ok) {
    const char *id = xt_atomic_file_id(&open->file);
    ERL_NIF_TERM digits = xt_make_text(env, id, strlen(id));
    return xt_make_ok(env, enif_make_tuple2(env, make_file(env, open), digits));
  }
  close_file(&open->reapable);
  return xt_make_error(env, &error);
}

/* atomic_file_claim(path of a temporary file) :: {:ok, file | nil, 0} | {:error, e}     nil: its writer may be alive */
ERL_NIF_TERM xt_nif_atomic_file_claim(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[XT_PATH_SIZE];
  xt_error error;
  bool claimed;
  (void)argc;
  if (!xt_get_path(env, argv[0], path)) return enif_make_badarg(env);
  open_file *open = new_file();
  if (!open) return no_memory(env);
  xt_status status = xt_atomic_file_claim(&open->file, path, &claimed, &error);
  if (claimed) return xt_make_ok(env, make_file(env, open));
  close_file(&open->reapable);
  return xt_make_result(env, status, xt_am_nil, &error);
}

typedef xt_status file_call(open_file *open, const ErlNifBinary *data, xt_error *error);

/* The wrapper of the NIFs below: enters the file, runs the function and leaves. The file is closed afterwards if
 * `closes`. */
static ERL_NIF_TERM run(ErlNifEnv *env, ERL_NIF_TERM term, file_call *call, const ErlNifBinary *data, bool closes) {
  file_resource *resource;
  xt_error error;
  if (!enif_get_resource(env, term, xt_atomic_file_type, (void **)&resource)) return enif_make_badarg(env);
  xt_status status = xt_busy_enter(&resource->busy, "writing this file", &error);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  open_file *open = resource->open;
  if (!open) status = xt_error_set(&error, XT_STATUS_stale, "this file is already closed");
  else if (call) status = call(open, data, &error);
  if (closes) resource->open = NULL;
  xt_busy_leave(&resource->busy);
  if (closes && open) close_file(&open->reapable);
  return xt_make_result(env, status, xt_am_ok, &error);
}

static xt_status write_data(open_file *open, const ErlNifBinary *data, xt_error *error) {
  return xt_atomic_file_write(&open->file, data->data, data->size, error);
}

/* atomic_file_write(file, binary) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_atomic_file_write(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifBinary data;
  (void)argc;
  return enif_inspect_binary(env, argv[1], &data) ? run(env, argv[0], write_data, &data, false) : enif_make_badarg(env);
}

static xt_status sync_file(open_file *open, const ErlNifBinary *data, xt_error *error) {
  (void)data;
  return xt_atomic_file_sync(&open->file, error);
}

/* atomic_file_sync(file) :: {:ok, :ok, 0} | {:error, e}     with its temporary name */
ERL_NIF_TERM xt_nif_atomic_file_sync(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return run(env, argv[0], sync_file, NULL, false);
}

static xt_status commit_file(open_file *open, const ErlNifBinary *data, xt_error *error) {
  (void)data;
  return xt_atomic_file_commit(&open->file, true, error);
}

/* atomic_file_close(file, commit?) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_atomic_file_close(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  bool commit;
  (void)argc;
  return xt_get_bool(env, argv[1], &commit) ? run(env, argv[0], commit ? commit_file : NULL, NULL, true)
                                            : enif_make_badarg(env);
}

static xt_status discard_file(open_file *open, const ErlNifBinary *data, xt_error *error) {
  (void)data, (void)error;
  xt_atomic_file_discard(&open->file);
  return XT_STATUS_ok;
}

/* atomic_file_discard(file) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_atomic_file_discard(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return run(env, argv[0], discard_file, NULL, true);
}
