/* Files that appear completely or not at all (core/os/atomic_file.h), written from Elixir. If the process dies before
 * it commits, the garbage collection of the resource closes the file. */
#include "core/os/atomic_file.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory/reaper.h"
#include "nif/table.h"
#include "nif/term.h"

/* Closed by the reaper thread, because closing can take long on a slow disk. */
typedef struct {
  xt_reapable reapable; /* must be first */
  xt_atomic_file file;
} open_file;

typedef struct {
  atomic_flag busy; /* set while a call uses the file */
  open_file *open;  /* NULL once it is closed */
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
  atomic_flag_clear(&resource->busy);
  resource->open = open;
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

/* Marks the file as busy; leave must follow. Fails if the file is closed or busy. */
static xt_status enter(file_resource *resource, xt_error *error) {
  if (atomic_flag_test_and_set(&resource->busy))
    return xt_error_set(error, XT_STATUS_busy, "another process is writing this file");
  if (resource->open) return XT_STATUS_ok;
  atomic_flag_clear(&resource->busy);
  return xt_error_set(error, XT_STATUS_stale, "this file is already closed");
}

static void leave(file_resource *resource) { atomic_flag_clear(&resource->busy); }

static bool get_file(ErlNifEnv *env, ERL_NIF_TERM term, file_resource **out) {
  return enif_get_resource(env, term, xt_atomic_file_type, (void **)out);
}

/* atomic_file_write(file, binary) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_atomic_file_write(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  file_resource *resource;
  ErlNifBinary data;
  xt_error error;
  (void)argc;
  if (!get_file(env, argv[0], &resource) || !enif_inspect_binary(env, argv[1], &data)) return enif_make_badarg(env);
  if (enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_status status = xt_atomic_file_write(&resource->open->file, data.data, data.size, &error);
  leave(resource);
  return xt_make_result(env, status, xt_am_ok, &error);
}

/* atomic_file_sync(file) :: {:ok, :ok, 0} | {:error, e}     with its temporary name */
ERL_NIF_TERM xt_nif_atomic_file_sync(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  file_resource *resource;
  xt_error error;
  (void)argc;
  if (!get_file(env, argv[0], &resource)) return enif_make_badarg(env);
  if (enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_status status = xt_atomic_file_sync(&resource->open->file, &error);
  leave(resource);
  return xt_make_result(env, status, xt_am_ok, &error);
}

/* atomic_file_close(file, commit?) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_atomic_file_close(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  file_resource *resource;
  xt_error error;
  bool commit;
  (void)argc;
  if (!get_file(env, argv[0], &resource) || !xt_get_bool(env, argv[1], &commit)) return enif_make_badarg(env);
  if (enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  open_file *open = resource->open;
  xt_status status = commit ? xt_atomic_file_commit(&open->file, true, &error) : XT_STATUS_ok;
  resource->open = NULL;
  leave(resource);
  close_file(&open->reapable);
  return xt_make_result(env, status, xt_am_ok, &error);
}

/* atomic_file_discard(file) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_atomic_file_discard(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  file_resource *resource;
  xt_error error;
  (void)argc;
  if (!get_file(env, argv[0], &resource)) return enif_make_badarg(env);
  if (enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  open_file *open = resource->open;
  resource->open = NULL;
  leave(resource);
  xt_atomic_file_discard(&open->file);
  close_file(&open->reapable);
  return xt_make_ok(env, xt_am_ok);
}
