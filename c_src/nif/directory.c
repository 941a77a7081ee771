/* Locks and names of directories (core/os/directory.h). If the process dies, the garbage collection of the resource
 * releases the lock. */
#include "core/os/directory.h"

#include <stdatomic.h>
#include <string.h>

#include "nif/table.h"
#include "nif/term.h"

enum { MAX_NAMES = 10000 };

typedef struct {
  atomic_int fd; /* -1 once the lock is released */
} directory_lock;

static void release(directory_lock *lock) {
  int fd = atomic_exchange(&lock->fd, -1);
  if (fd >= 0) xt_directory_unlock(fd);
}

/* Closing the descriptor of a directory does not write anything, so it may be done on any thread. */
static void destroy_lock(ErlNifEnv *env, void *object) {
  (void)env;
  release(object);
}

const ErlNifResourceTypeInit xt_directory_callbacks = {.dtor = destroy_lock};

/* directory_lock(path) :: {:ok, lock | nil, 0} | {:error, e}     nil: another process holds the lock */
ERL_NIF_TERM xt_nif_directory_lock(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[XT_PATH_SIZE];
  xt_error error;
  int fd;
  (void)argc;
  if (!xt_get_path(env, argv[0], path)) return enif_make_badarg(env);
  if (xt_directory_lock(path, &fd, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  if (fd < 0) return xt_make_ok(env, xt_am_nil);
  directory_lock *lock = enif_alloc_resource(xt_directory_type, sizeof *lock);
  atomic_init(&lock->fd, fd);
  ERL_NIF_TERM term = enif_make_resource(env, lock);
  enif_release_resource(lock);
  return xt_make_ok(env, term);
}

/* directory_unlock(lock) :: {:ok, :ok, 0} */
ERL_NIF_TERM xt_nif_directory_unlock(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  directory_lock *lock;
  (void)argc;
  if (!enif_get_resource(env, argv[0], xt_directory_type, (void **)&lock)) return enif_make_badarg(env);
  release(lock);
  return xt_make_ok(env, xt_am_ok);
}

typedef struct {
  ErlNifEnv *env;
  ErlNifBinary prefix, suffix;
  ERL_NIF_TERM names;
  size_t count;
} listing;

static bool add_name(void *context, const char *name) {
  listing *list = context;
  size_t size = strlen(name);
  bool begins = size >= list->prefix.size && !memcmp(name, list->prefix.data, list->prefix.size);
  bool ends =
      size >= list->suffix.size && !memcmp(name + size - list->suffix.size, list->suffix.data, list->suffix.size);
  if (!begins && !ends) return true;
  list->names = enif_make_list_cell(list->env, xt_make_text(list->env, name, size), list->names);
  return ++list->count <= MAX_NAMES;
}

/* directory_list(path, prefix, suffix) :: {:ok, [name], 0} | {:error, e}     names with the prefix or the suffix */
ERL_NIF_TERM xt_nif_directory_list(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[XT_PATH_SIZE];
  xt_error error;
  listing list = {.env = env, .names = enif_make_list(env, 0)};
  (void)argc;
  if (!xt_get_path(env, argv[0], path) || !enif_inspect_binary(env, argv[1], &list.prefix) ||
      !enif_inspect_binary(env, argv[2], &list.suffix))
    return enif_make_badarg(env);
  xt_status status = xt_directory_list(path, add_name, &list, &error);
  if (status == XT_STATUS_ok && list.count > MAX_NAMES)
    status = xt_error_set(&error, XT_STATUS_limit,
                          "the directory contains at least %zu indexes; at most %d are allowed", list.count, MAX_NAMES);
  return xt_make_result(env, status, list.names, &error);
}
