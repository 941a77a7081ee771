/* Files that appear completely or not at all (core/os/atomic_file.h), written from Elixir. If the process dies before
 * it commits, the garbage collection of the resource removes the incomplete file. */
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

/* atomic_file_open(path) :: {:ok, file, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_atomic_file_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[XT_PATH_SIZE];
  xt_error error;
  (void)argc;
  if (!xt_get_path(env, argv[0], path)) return enif_make_badarg(env);
  open_file *open = calloc(1, sizeof *open);
  if (!open) return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while opening the file");
  open->reapable.run = close_file;
  if (xt_atomic_file_open(&open->file, path, &error) != XT_STATUS_ok) {
    close_file(&open->reapable);
    return xt_make_error(env, &error);
  }
  file_resource *resource = enif_alloc_resource(xt_atomic_file_type, sizeof *resource);
  atomic_flag_clear(&resource->busy);
  resource->open = open;
  ERL_NIF_TERM term = enif_make_resource(env, resource);
  enif_release_resource(resource);
  return xt_make_ok(env, term);
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

/* atomic_file_close(file, commit?) :: {:ok, :ok, 0} | {:error, e}     without a commit the file is removed */
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
