/* Files that appear whole or not at all, written from Elixir: what core/outfile.h promises of a process that dies holds
 * for a BEAM process as well, since its garbage is what closes the file. */
#include "core/os/atomic_file.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory/reaper.h"
#include "nif/table.h"
#include "nif/term.h"

/* The reaper closes it: that may take as long as the disk likes. */
typedef struct {
  xt_reapable reapable; /* first */
  xt_atomic_file file;
} atomic_file;

typedef struct {
  atomic_flag busy;
  atomic_file *atomic_file; /* NULL: it is closed */
} atomic_file_resource;

static void free_outfile(xt_reapable *self) {
  xt_atomic_file_close(&((atomic_file *)self)->file);
  free(self);
}

static void atomic_file_destroyed(ErlNifEnv *env, void *object) {
  atomic_file_resource *resource = object;
  (void)env;
  if (resource->atomic_file) xt_reaper_push(&resource->atomic_file->reapable);
}

const ErlNifResourceTypeInit xt_atomic_file_callbacks = {.dtor = atomic_file_destroyed};

/* atomic_file_open(path) :: {:ok, outfile, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_atomic_file_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifBinary text;
  char path[4096];
  xt_error error;
  (void)argc;
  if (!enif_inspect_binary(env, argv[0], &text) || text.size >= sizeof path || memchr(text.data, 0, text.size))
    return enif_make_badarg(env);
  memcpy(path, text.data, text.size);
  path[text.size] = 0;
  atomic_file *made = calloc(1, sizeof *made);
  xt_status status = made ? xt_atomic_file_open(&made->file, path, &error)
                          : xt_error_set(&error, XT_STATUS_no_memory, "no memory to open the file");
  if (status != XT_STATUS_ok) {
    if (made) free_outfile(&made->reapable);
    return xt_make_error(env, &error);
  }
  made->reapable.run = free_outfile;
  atomic_file_resource *resource = enif_alloc_resource(xt_atomic_file_type, sizeof *resource);
  atomic_flag_clear(&resource->busy);
  resource->atomic_file = made;
  ERL_NIF_TERM term = enif_make_resource(env, resource);
  enif_release_resource(resource);
  return xt_make_ok(env, term);
}

/* False with an error when it is closed, or another process is writing. Ends with clearing `busy`. */
static bool hold(ErlNifEnv *env, ERL_NIF_TERM term, atomic_file_resource **out, ERL_NIF_TERM *answer) {
  xt_error error;
  if (!enif_get_resource(env, term, xt_atomic_file_type, (void **)out)) return *answer = enif_make_badarg(env), false;
  if (atomic_flag_test_and_set(&(*out)->busy)) {
    xt_error_set(&error, XT_STATUS_busy, "another process is writing this file");
    return *answer = xt_make_error(env, &error), false;
  }
  if ((*out)->atomic_file) return true;
  atomic_flag_clear(&(*out)->busy);
  xt_error_set(&error, XT_STATUS_stale, "this file was closed");
  return *answer = xt_make_error(env, &error), false;
}

/* atomic_file_write(outfile, binary) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_atomic_file_write(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  atomic_file_resource *resource;
  ErlNifBinary data;
  ERL_NIF_TERM answer;
  xt_error error;
  (void)argc;
  if (!enif_inspect_binary(env, argv[1], &data)) return enif_make_badarg(env);
  if (!hold(env, argv[0], &resource, &answer)) return answer;
  xt_status status = xt_atomic_file_write(&resource->atomic_file->file, data.data, data.size, &error);
  atomic_flag_clear(&resource->busy);
  return status == XT_STATUS_ok ? xt_make_ok(env, xt_am_ok) : xt_make_error(env, &error);
}

/* atomic_file_close(outfile, commit?) :: {:ok, :ok, 0} | {:error, e}     what is not committed is gone */
ERL_NIF_TERM xt_nif_atomic_file_close(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  atomic_file_resource *resource;
  ERL_NIF_TERM answer;
  xt_error error;
  bool commit;
  (void)argc;
  if (!xt_get_bool(env, argv[1], &commit)) return enif_make_badarg(env);
  if (!hold(env, argv[0], &resource, &answer)) return answer;
  atomic_file *file = resource->atomic_file;
  xt_status status = commit ? xt_atomic_file_commit(&file->file, true, &error) : XT_STATUS_ok;
  resource->atomic_file = NULL;
  atomic_flag_clear(&resource->busy);
  free_outfile(&file->reapable);
  return status == XT_STATUS_ok ? xt_make_ok(env, xt_am_ok) : xt_make_error(env, &error);
}
