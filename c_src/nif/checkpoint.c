/* The checkpoint resource: its lifetime, and the functions that the other checkpoint_*.c files share. */
#include "nif/checkpoint.h"

#include <stdlib.h>

#include "nif/table.h"

void xt_checkpoint_handle_free(xt_reapable *self) {
  xt_checkpoint_handle *handle = (xt_checkpoint_handle *)self;
  xt_checkpoint_free(&handle->checkpoint);
  xt_file_close(&handle->file);
  xt_region_drop(handle->memory);
  free(handle);
}

xt_checkpoint_handle *xt_checkpoint_handle_new(void) {
  xt_checkpoint_handle *handle = calloc(1, sizeof *handle);
  if (!handle) return NULL;
  handle->reapable.run = xt_checkpoint_handle_free;
  handle->file.fd = -1;
  return handle;
}

/* Returns true if the checkpoint was open, that is for the first call only. */
static bool close_resource(xt_checkpoint_resource *resource) {
  uint_least64_t before = atomic_fetch_or(&resource->state, 1);
  if (before == 0) xt_reaper_push(&resource->handle->reapable);
  return !(before & 1);
}

static void destroy_checkpoint(ErlNifEnv *env, void *object) {
  (void)env;
  close_resource(object);
}

const ErlNifResourceTypeInit xt_checkpoint_callbacks = {.dtor = destroy_checkpoint};

bool xt_get_checkpoint(ErlNifEnv *env, ERL_NIF_TERM term, xt_checkpoint_resource **out) {
  return enif_get_resource(env, term, xt_checkpoint_type, (void **)out);
}

xt_status xt_checkpoint_enter_unopened(xt_checkpoint_resource *resource, xt_error *error) {
  uint_least64_t state = atomic_load(&resource->state);
  do {
    if (state & 1) return xt_error_set(error, XT_STATUS_released, "the checkpoint is closed; open it again");
  } while (!atomic_compare_exchange_weak(&resource->state, &state, state + 2));
  return XT_STATUS_ok;
}

xt_status xt_checkpoint_enter(xt_checkpoint_resource *resource, xt_error *error) {
  xt_status status = xt_checkpoint_enter_unopened(resource, error);
  if (status != XT_STATUS_ok || resource->handle->open) return status;
  xt_checkpoint_leave(resource);
  return xt_error_set(error, XT_STATUS_bad_argument, "the checkpoint is not open yet");
}

void xt_checkpoint_leave(xt_checkpoint_resource *resource) {
  if (atomic_fetch_sub(&resource->state, 2) == 3) xt_reaper_push(&resource->handle->reapable);
}

xt_status xt_checkpoint_check_file(const xt_checkpoint_handle *handle, xt_status status, xt_error *error) {
  xt_error changed;
  bool suspicious = status == XT_STATUS_ok || status == XT_STATUS_corrupt || status == XT_STATUS_truncated;
  if (handle->file.fd < 0 || !suspicious || xt_file_check(&handle->file, &changed) == XT_STATUS_ok) return status;
  *error = changed;
  return error->status;
}

static bool caller_is_dead(void *env) { return !enif_is_current_process_alive(env); }

xt_record_reader xt_checkpoint_handle_reader(xt_checkpoint_handle *handle, ErlNifEnv *env, bool verify) {
  return (xt_record_reader){.checkpoint = &handle->checkpoint,
                            .file = &handle->file,
                            .memory = handle->checkpoint.unpacked ? handle->checkpoint.memory : handle->memory,
                            /* an operator on a tensor must not change what the next call reads */
                            .copies = handle->checkpoint.unpacked,
                            .verify = verify,
                            .stop = caller_is_dead,
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
  if (!xt_get_checkpoint(env, argv[0], &resource)) return enif_make_badarg(env);
  return xt_make_bool(close_resource(resource));
}
