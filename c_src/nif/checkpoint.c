/* The checkpoint resource: its lifetime, and the functions that the other checkpoint_*.c files share. */
#include "nif/checkpoint.h"

#include <stdlib.h>

#include "core/os/exit_guard.h"
#include "nif/table.h"

void xt_checkpoint_handle_free(xt_reapable *self) {
  xt_checkpoint_handle *handle = (xt_checkpoint_handle *)self;
  xt_checkpoint_free(&handle->checkpoint);
  xt_file_close(&handle->file);
  xt_region_drop(handle->memory);
  free(handle);
}

xt_checkpoint_handle *xt_checkpoint_handle_new(const xt_checkpoint_options *options) {
  xt_checkpoint_handle *handle = calloc(1, sizeof *handle);
  if (!handle) return NULL;
  handle->reapable.run = xt_checkpoint_handle_free;
  handle->file.fd = -1;
  handle->total_bytes = options->total_bytes;
  handle->readers = options->readers;
  handle->cpus = options->cpus;
  handle->drop = options->drop;
  handle->files = options->limits.files;
  return handle;
}

/* ---- The state word ---- */

bool xt_checkpoint_close(xt_checkpoint_resource *resource) {
  uint_least64_t before = atomic_fetch_or(&resource->state, 1);
  if (before == 0) xt_reaper_push(&resource->handle->reapable);
  return !(before & 1);
}

static void destroy_checkpoint(ErlNifEnv *env, void *object) {
  (void)env;
  xt_checkpoint_close(object);
}

const ErlNifResourceTypeInit xt_checkpoint_callbacks = {.dtor = destroy_checkpoint};

static void leave(xt_checkpoint_resource *resource) {
  if (atomic_fetch_sub(&resource->state, 2) == 3) xt_reaper_push(&resource->handle->reapable);
}

void xt_checkpoint_hold(xt_checkpoint_resource *resource) {
  enif_keep_resource(resource);
  atomic_fetch_add(&resource->state, 2);
}

void xt_checkpoint_let_go(xt_checkpoint_resource *resource) {
  leave(resource);
  enif_release_resource(resource);
}

static ERL_NIF_TERM make_closed(ErlNifEnv *env) {
  return xt_make_failure(env, XT_STATUS_released, "the checkpoint is closed; open it again");
}

/* Enters the checkpoint argv[0]. Otherwise returns NULL and sets *result. */
static xt_checkpoint_resource *enter(ErlNifEnv *env, const ERL_NIF_TERM argv[], ERL_NIF_TERM *result) {
  xt_checkpoint_resource *resource;
  *result = 0;
  if (!enif_get_resource(env, argv[0], xt_checkpoint_type, (void **)&resource))
    return *result = enif_make_badarg(env), NULL;
  uint_least64_t state = atomic_load(&resource->state);
  do {
    if (state & 1) return *result = make_closed(env), NULL;
  } while (!atomic_compare_exchange_weak(&resource->state, &state, state + 2));
  return resource;
}

ERL_NIF_TERM xt_checkpoint_run(ErlNifEnv *env, const ERL_NIF_TERM argv[], xt_checkpoint_call *call) {
  ERL_NIF_TERM failure;
  xt_checkpoint_resource *resource = enter(env, argv, &failure);
  if (!resource) return failure;
  ERL_NIF_TERM result = resource->handle->open
                            ? call(env, resource, argv)
                            : xt_make_failure(env, XT_STATUS_bad_argument, "the checkpoint is not open yet");
  leave(resource);
  return result;
}

/* The terms that describe a checkpoint are made of what it holds in memory, and some of them several times: the keys
 * above many tensors. With this much of both, they are made in less than 0.3 ms. */
enum { SMALL_BYTES = 512 << 10, SMALL_PERCENT = 20 };

static uint64_t size_of(const xt_checkpoint *c) {
  return c->allowance.used + c->index.weight + (c->memory ? c->memory->size : 0);
}

ERL_NIF_TERM xt_checkpoint_run_by_size(ErlNifEnv *env, const char *name, xt_nif_function *nif, int argc,
                                       const ERL_NIF_TERM argv[], xt_checkpoint_call *call) {
  if (enif_thread_type() != ERL_NIF_THR_NORMAL_SCHEDULER) return xt_checkpoint_run(env, argv, call);
  ERL_NIF_TERM failure;
  xt_checkpoint_resource *resource = enter(env, argv, &failure);
  if (!resource) return failure;
  uint64_t bytes = size_of(&resource->handle->checkpoint);
  leave(resource);
  if (bytes > SMALL_BYTES) return enif_schedule_nif(env, name, XT_DIRTY_CPU, nif, argc, argv);
  enif_consume_timeslice(env, 1 + (int)(bytes * SMALL_PERCENT / SMALL_BYTES));
  return xt_checkpoint_run(env, argv, call);
}

ERL_NIF_TERM xt_checkpoint_run_exclusively(ErlNifEnv *env, const ERL_NIF_TERM argv[], xt_checkpoint_call *call) {
  xt_checkpoint_resource *resource;
  uint_least64_t idle = 0;
  if (!enif_get_resource(env, argv[0], xt_checkpoint_type, (void **)&resource)) return enif_make_badarg(env);
  if (!atomic_compare_exchange_strong(&resource->state, &idle, 2))
    return idle & 1 ? make_closed(env)
                    : xt_make_failure(env, XT_STATUS_busy, "another process is using this checkpoint");
  ERL_NIF_TERM result = call(env, resource, argv);
  leave(resource);
  return result;
}

/* ---- For the other files ---- */

xt_status xt_checkpoint_check_total(const xt_checkpoint_handle *handle, uint64_t bytes, xt_error *error) {
  if (bytes <= handle->total_bytes) return XT_STATUS_ok;
  return xt_error_set(
      error, XT_STATUS_limit,
      "the tensors have %llu bytes, which exceeds the limit of %llu; raise it with limits: [total_bytes: n]",
      (unsigned long long)bytes, (unsigned long long)handle->total_bytes);
}

xt_status xt_checkpoint_check_file(const xt_checkpoint_handle *handle, xt_status status, xt_error *error) {
  xt_error changed;
  bool suspicious = status == XT_STATUS_ok || status == XT_STATUS_corrupt || status == XT_STATUS_truncated;
  if (handle->file.fd < 0 || !suspicious || xt_file_check(&handle->file, &changed) == XT_STATUS_ok) return status;
  *error = changed;
  return error->status;
}

/* Also stops when the process exits, so that a long load does not delay it. */
static bool is_stopped(void *env) { return xt_exit_guard_stopping() || !enif_is_current_process_alive(env); }

xt_record_reader xt_checkpoint_handle_reader(xt_checkpoint_handle *handle, ErlNifEnv *env, bool verify) {
  return (xt_record_reader){.checkpoint = &handle->checkpoint,
                            .file = &handle->file,
                            .memory = handle->checkpoint.unpacked ? handle->checkpoint.memory : handle->memory,
                            /* an operator on a tensor must not change what the next call reads */
                            .copies = handle->checkpoint.unpacked,
                            .verify = verify,
                            .readers = handle->readers,
                            .cpus = handle->cpus,
                            .files = handle->files,
                            .drop = handle->drop,
                            .stop = is_stopped,
                            .context = env};
}

ERL_NIF_TERM xt_make_checkpoint(ErlNifEnv *env, xt_checkpoint_handle *handle) {
  xt_checkpoint_resource *resource = enif_alloc_resource(xt_checkpoint_type, sizeof *resource);
  atomic_init(&resource->state, 0);
  resource->handle = handle;
  ERL_NIF_TERM term = enif_make_resource(env, resource);
  enif_release_resource(resource);
  return term;
}

/* checkpoint_close(checkpoint) :: boolean     true if it was open */
ERL_NIF_TERM xt_nif_checkpoint_close(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  (void)argc;
  if (!enif_get_resource(env, argv[0], xt_checkpoint_type, (void **)&resource)) return enif_make_badarg(env);
  return xt_make_bool(xt_checkpoint_close(resource));
}
