/* Opens checkpoints from a path or a binary. Sources that Elixir reads are opened in source_reader.c. */
#include "core/checkpoint/readers.h"
#include "core/formats/feed.h"
#include "core/formats/open.h"
#include "core/memory/parallel.h"
#include "nif/checkpoint.h"
#include "nif/frozen_binary.h"
#include "nif/table.h"

bool xt_get_checkpoint_options(ErlNifEnv *env, ERL_NIF_TERM term, xt_checkpoint_options *out) {
  const ERL_NIF_TERM *items;
  ErlNifUInt64 numbers[11];
  int arity;
  if (!enif_get_tuple(env, term, &arity, &items) || arity != 15 || !xt_get_bool(env, items[0], &out->strict) ||
      !xt_get_bool(env, items[1], &out->mmap) || !xt_get_bool(env, items[2], &out->verify) ||
      !xt_get_bool(env, items[14], &out->populate))
    return false;
  for (int i = 0; i < 11; i++)
    if (!enif_get_uint64(env, items[3 + i], &numbers[i])) return false;
  out->offset = numbers[5];
  out->total_bytes = numbers[6];
  out->limits = (xt_limits){numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[7]};
  out->readers = (unsigned)numbers[8];
  out->cpus = (unsigned)numbers[9];
  out->drop = (xt_drop)numbers[10];
  return numbers[2] >= 1 && numbers[2] <= 10000 && numbers[8] <= XT_MAX_THREADS && numbers[9] <= INT32_MAX &&
         numbers[10] <= XT_DROP_IF_LARGE;
}

/* Reads the bytes that opening needs until it is finished. */
static xt_status run_open(xt_checkpoint_handle *handle, const xt_record_reader *reader, xt_error *error) {
  xt_need need = {0, 0, NULL};
  xt_status status;
  while ((status = xt_open_step(&handle->checkpoint, &need, error)) == XT_STATUS_ok && need.size)
    if ((status = xt_record_reader_fetch(reader, need.offset, need.to, need.size, error)) != XT_STATUS_ok) break;
  handle->open = status == XT_STATUS_ok;
  return status;
}

static ERL_NIF_TERM make_opened(ErlNifEnv *env, xt_checkpoint_handle *handle, xt_status status, xt_error *error) {
  if (status == XT_STATUS_ok) return xt_make_ok(env, xt_make_checkpoint(env, handle));
  xt_checkpoint_handle_free(&handle->reapable);
  return xt_make_error(env, error);
}

static const char no_memory[] = "out of memory while opening the checkpoint";

/* checkpoint_open(path, options) :: {:ok, checkpoint | :directory, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[XT_PATH_SIZE];
  xt_checkpoint_options opts;
  xt_error error;
  (void)argc;
  if (!xt_get_path(env, argv[0], path) || !xt_get_checkpoint_options(env, argv[1], &opts)) return enif_make_badarg(env);
  xt_checkpoint_handle *handle = xt_checkpoint_handle_new(&opts);
  if (!handle) return xt_make_failure(env, XT_STATUS_no_memory, no_memory);
  xt_status status = xt_file_open(&handle->file, path, &error);
  if (status == XT_STATUS_ok) {
    xt_checkpoint_begin(&handle->checkpoint, handle->file.size, opts.offset, &opts.limits, opts.strict, opts.verify);
    xt_record_reader reader = xt_checkpoint_handle_reader(handle, env, false);
    status = run_open(handle, &reader, &error);
  }
  if (status == XT_STATUS_ok) status = xt_file_check(&handle->file, &error);
  if (status == XT_STATUS_ok && opts.mmap) status = xt_region_map(&handle->file, &handle->memory, &error);
  if (status == XT_STATUS_ok && opts.populate) {
    xt_record_reader reader = xt_checkpoint_handle_reader(handle, env, false);
    status = xt_readers_populate(&reader, handle->memory, &error);
  }
  handle->mapped = opts.mmap;
  bool is_directory = handle->file.is_directory;
  if (is_directory) xt_checkpoint_handle_free(&handle->reapable);
  if (is_directory) return xt_make_ok(env, xt_am_directory);
  return make_opened(env, handle, status, &error);
}

/* checkpoint_open_binary(binary, options) :: {:ok, checkpoint, 0} | {:error, e}     its tensors share the binary */
ERL_NIF_TERM xt_nif_checkpoint_open_binary(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_options opts;
  xt_error error;
  (void)argc;
  if (!enif_is_binary(env, argv[0]) || !xt_get_checkpoint_options(env, argv[1], &opts)) return enif_make_badarg(env);
  xt_checkpoint_handle *handle = xt_checkpoint_handle_new(&opts);
  if (!handle) return xt_make_failure(env, XT_STATUS_no_memory, no_memory);
  handle->memory = xt_region_from_binary(argv[0]);
  if (!handle->memory) {
    xt_checkpoint_handle_free(&handle->reapable);
    return xt_make_failure(env, XT_STATUS_no_memory, no_memory);
  }
  xt_checkpoint_begin(&handle->checkpoint, handle->memory->size, opts.offset, &opts.limits, opts.strict, opts.verify);
  xt_record_reader reader = xt_checkpoint_handle_reader(handle, env, false);
  return make_opened(env, handle, run_open(handle, &reader, &error), &error);
}

xt_status xt_checkpoint_for_push(ErlNifEnv *env, ERL_NIF_TERM options, xt_checkpoint_resource **out, ERL_NIF_TERM *made,
                                 xt_error *error) {
  xt_checkpoint_options opts;
  if (!xt_get_checkpoint_options(env, options, &opts)) return XT_STATUS_bad_argument;
  xt_checkpoint_handle *handle = xt_checkpoint_handle_new(&opts);
  if (!handle) return xt_error_set(error, XT_STATUS_no_memory, "%s", no_memory);
  xt_push_begin_checkpoint(&handle->checkpoint, &opts.limits, opts.strict, opts.verify);
  *made = xt_make_checkpoint(env, handle);
  enif_get_resource(env, *made, xt_checkpoint_type, (void **)out);
  xt_checkpoint_hold(*out);
  return XT_STATUS_ok;
}
