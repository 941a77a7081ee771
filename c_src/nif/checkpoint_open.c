/* Opening checkpoints: from a path, a binary, or, by steps, from a source that Elixir reads. */
#include <string.h>

#include "core/checkpoint/push.h"
#include "core/os/mapping.h"
#include "nif/checkpoint.h"
#include "nif/table.h"

typedef struct {
  bool strict, mmap, verify;
  xt_limits limits;
  uint64_t offset;
} options;

/* {strict?, mmap?, verify?, pickle_bytes, nodes, depth, tensor_bytes, offset} */
static bool get_options(ErlNifEnv *env, ERL_NIF_TERM term, options *out) {
  const ERL_NIF_TERM *items;
  ErlNifUInt64 numbers[5];
  int arity;
  if (!enif_get_tuple(env, term, &arity, &items) || arity != 8 || !xt_get_bool(env, items[0], &out->strict) ||
      !xt_get_bool(env, items[1], &out->mmap) || !xt_get_bool(env, items[2], &out->verify))
    return false;
  for (int i = 0; i < 5; i++)
    if (!enif_get_uint64(env, items[3 + i], &numbers[i])) return false;
  out->offset = numbers[4];
  out->limits = (xt_limits){numbers[0], numbers[1], numbers[2], numbers[3]};
  return numbers[2] >= 1 && numbers[2] <= 10000;
}

static xt_status run_open(xt_checkpoint_handle *handle, const xt_record_reader *reader, xt_error *error) {
  xt_need need = {0, 0, NULL};
  xt_status status;
  while ((status = xt_checkpoint_step(&handle->checkpoint, &need, error)) == XT_STATUS_ok && need.size)
    if ((status = xt_record_reader_fetch(reader, need.offset, need.to, need.size, error)) != XT_STATUS_ok) break;
  handle->open = status == XT_STATUS_ok;
  return status;
}

static ERL_NIF_TERM return_handle(ErlNifEnv *env, xt_checkpoint_handle *handle, xt_status status, xt_error *error) {
  if (status == XT_STATUS_ok) return xt_make_ok(env, xt_make_checkpoint(env, handle));
  xt_checkpoint_handle_free(&handle->reapable);
  return xt_make_error(env, error);
}

static ERL_NIF_TERM out_of_memory(ErlNifEnv *env) {
  xt_error error;
  xt_error_set(&error, XT_STATUS_no_memory, "no memory to open the checkpoint");
  return xt_make_error(env, &error);
}

/* checkpoint_open(path, options) :: {:ok, checkpoint, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[4096];
  ErlNifBinary text;
  options opts;
  xt_error error;
  (void)argc;
  if (!enif_inspect_binary(env, argv[0], &text) || text.size >= sizeof path || memchr(text.data, 0, text.size) ||
      !get_options(env, argv[1], &opts))
    return enif_make_badarg(env);
  memcpy(path, text.data, text.size);
  path[text.size] = 0;
  xt_checkpoint_handle *handle = xt_checkpoint_handle_new();
  if (!handle) return out_of_memory(env);
  xt_status status = xt_file_open(&handle->file, path, &error);
  if (status == XT_STATUS_ok) {
    xt_checkpoint_begin(&handle->checkpoint, handle->file.size, opts.offset, &opts.limits, opts.strict, opts.verify,
                        &error);
    xt_record_reader reader = xt_checkpoint_handle_reader(handle, env, false);
    status = run_open(handle, &reader, &error);
  }
  if (status == XT_STATUS_ok) status = xt_file_check(&handle->file, &error);
  if (status == XT_STATUS_ok && opts.mmap) status = xt_mapping_open(&handle->file, &handle->memory, &error);
  return return_handle(env, handle, status, &error);
}

/* checkpoint_open_binary(binary, options) :: {:ok, checkpoint, 0} | {:error, e}     tensors share the binary */
ERL_NIF_TERM xt_nif_checkpoint_open_binary(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  options opts;
  xt_error error;
  (void)argc;
  if (!enif_is_binary(env, argv[0]) || !get_options(env, argv[1], &opts)) return enif_make_badarg(env);
  xt_checkpoint_handle *handle = xt_checkpoint_handle_new();
  if (!handle) return out_of_memory(env);
  handle->memory = xt_pin_binary(argv[0]);
  if (!handle->memory) {
    xt_checkpoint_handle_free(&handle->reapable);
    return out_of_memory(env);
  }
  xt_checkpoint_begin(&handle->checkpoint, handle->memory->size, opts.offset, &opts.limits, opts.strict, opts.verify,
                      &error);
  xt_record_reader reader = xt_checkpoint_handle_reader(handle, env, false);
  return return_handle(env, handle, run_open(handle, &reader, &error), &error);
}

xt_status xt_checkpoint_for_push(ErlNifEnv *env, ERL_NIF_TERM term, xt_checkpoint_resource **out, ERL_NIF_TERM *made,
                                 xt_error *error) {
  options opts;
  if (!get_options(env, term, &opts)) return XT_STATUS_bad_argument;
  xt_checkpoint_handle *handle = xt_checkpoint_handle_new();
  if (!handle) return xt_error_set(error, XT_STATUS_no_memory, "no memory to open the checkpoint");
  xt_push_begin_checkpoint(&handle->checkpoint, &opts.limits, opts.strict, opts.verify, error);
  *made = xt_make_checkpoint(env, handle);
  xt_get_checkpoint(env, *made, out);
  enif_keep_resource(*out);
  return xt_checkpoint_enter_unopened(*out, error);
}

/* ---- By steps, for sources that Elixir reads ---- */

/* {:need, offset, size} while bytes are missing, :open afterwards. */
static ERL_NIF_TERM make_need(ErlNifEnv *env, const xt_need *need) {
  if (!need->size) return xt_am_open;
  return enif_make_tuple3(env, xt_am_need, enif_make_uint64(env, need->offset), enif_make_uint64(env, need->size));
}

/* source_reader_open(size, options) :: {:ok, {checkpoint, need}, 0} | {:error, e}     for sources that Elixir reads */
ERL_NIF_TERM xt_nif_source_reader_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 size;
  options opts;
  xt_error error;
  (void)argc;
  if (!enif_get_uint64(env, argv[0], &size) || !get_options(env, argv[1], &opts)) return enif_make_badarg(env);
  xt_checkpoint_handle *handle = xt_checkpoint_handle_new();
  if (!handle) return out_of_memory(env);
  xt_checkpoint_begin(&handle->checkpoint, size, opts.offset, &opts.limits, opts.strict, opts.verify, &error);
  xt_status status = xt_checkpoint_step(&handle->checkpoint, &handle->need, &error);
  if (status != XT_STATUS_ok) {
    xt_checkpoint_handle_free(&handle->reapable);
    return xt_make_error(env, &error);
  }
  ERL_NIF_TERM need = make_need(env, &handle->need);
  return xt_make_ok(env, enif_make_tuple2(env, xt_make_checkpoint(env, handle), need));
}

/* source_reader_fill(checkpoint, binary) :: {:ok, need | :open, 0} | {:error, e}     the bytes that were needed */
ERL_NIF_TERM xt_nif_source_reader_fill(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  ErlNifBinary bytes;
  xt_error error;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !enif_inspect_binary(env, argv[1], &bytes))
    return enif_make_badarg(env);
  /* alone: a checkpoint that is being opened is no use to anybody else */
  uint_least64_t idle = 0;
  if (!atomic_compare_exchange_strong(&resource->state, &idle, 2)) {
    xt_error_set(&error, idle & 1 ? XT_STATUS_released : XT_STATUS_busy, "this checkpoint is in use");
    return xt_make_error(env, &error);
  }
  xt_checkpoint_handle *handle = resource->handle;
  xt_status status = XT_STATUS_ok;
  if (handle->open || !handle->need.size || bytes.size != handle->need.size)
    status = xt_error_set(&error, XT_STATUS_io, "the source gave %zu bytes where %zu were asked for", bytes.size,
                          handle->need.size);
  if (status == XT_STATUS_ok) {
    memcpy(handle->need.to, bytes.data, bytes.size);
    status = xt_checkpoint_step(&handle->checkpoint, &handle->need, &error);
  }
  if (status != XT_STATUS_ok) handle->need = (xt_need){0, 0, NULL};
  if (status == XT_STATUS_ok && !handle->need.size) handle->open = true;
  ERL_NIF_TERM need = make_need(env, &handle->need);
  xt_checkpoint_leave(resource);
  return status == XT_STATUS_ok ? xt_make_ok(env, need) : xt_make_error(env, &error);
}
