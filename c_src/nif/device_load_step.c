/* The steps of a device load, and its end. */
#include <stdlib.h>

#include "nif/device_load.h"
#include "nif/frozen_binary.h"
#include "nif/materialize.h"
#include "nif/table.h"
#include "nif/term.h"

enum { MAX_AHEAD = 64 };

typedef xt_device_load device_load;
typedef xt_device_load_contents contents;

static xt_status no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors to a device");
}

typedef xt_status load_call(ErlNifEnv *env, device_load *self, const ERL_NIF_TERM argv[], ERL_NIF_TERM *value,
                            xt_error *error);

/* The wrapper of the NIFs below: enters the load, runs the call and leaves. A call returns bad_argument, without a
 * message, for a term of the wrong type. */
static ERL_NIF_TERM run(ErlNifEnv *env, const ERL_NIF_TERM argv[], load_call *call) {
  device_load *self;
  ERL_NIF_TERM value = xt_am_nil;
  xt_error error = {.status = XT_STATUS_ok};
  if (!enif_get_resource(env, argv[0], xt_device_load_type, (void **)&self)) return enif_make_badarg(env);
  xt_status status = xt_busy_enter(&self->busy, "using this load", &error);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  if (self->contents) {
    self->contents->load.reader.context = env;
    status = call(env, self, argv, &value, &error);
  } else {
    status = xt_error_set(&error, XT_STATUS_released, "this load is closed; start a new one");
  }
  xt_busy_leave(&self->busy);
  bool badarg = status == XT_STATUS_bad_argument && error.status == XT_STATUS_ok;
  return badarg ? enif_make_badarg(env) : xt_make_result(env, status, value, &error);
}

static xt_status check_file(const device_load *self, xt_status status, xt_error *error) {
  return self->checkpoint ? xt_checkpoint_check_file(self->checkpoint->handle, status, error) : status;
}

static xt_status step(ErlNifEnv *env, device_load *self, const ERL_NIF_TERM argv[], ERL_NIF_TERM *value,
                      xt_error *error) {
  xt_staged_load *load = &self->contents->load;
  xt_staged_state state;
  ErlNifUInt64 bytes;
  if (!enif_get_uint64(env, argv[1], &bytes)) return XT_STATUS_bad_argument;
  xt_status status = xt_staged_load_step(load, bytes, &state, error);
  if (state == XT_STAGED_FINISHED || status != XT_STATUS_ok) status = check_file(self, status, error);
  ERL_NIF_TERM name = state == XT_STAGED_WAITING ? xt_am_wait : xt_am_more;
  *value = state == XT_STAGED_FINISHED ? xt_am_done : enif_make_tuple2(env, name, enif_make_uint64(env, load->done));
  return status;
}

/* device_load_step(device_load, bytes) :: {:ok, {:more | :wait, bytes done} | :done, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_device_load_step(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return run(env, argv, step);
}

static xt_status fill(ErlNifEnv *env, device_load *self, const ERL_NIF_TERM argv[], ERL_NIF_TERM *value,
                      xt_error *error) {
  xt_staged_load *load = &self->contents->load;
  xt_staged_state state;
  bool again, first = argv[1] == xt_am_nil;
  if (!first && !enif_is_binary(env, argv[1])) return XT_STATUS_bad_argument;
  xt_region *bytes = first ? NULL : xt_region_from_binary(argv[1]);
  if (!first && !bytes) return no_memory(error);
  xt_status status = xt_staged_load_fill(load, bytes, &state, &again, error);
  if (bytes) xt_region_drop_later(bytes);
  ERL_NIF_TERM done = enif_make_uint64(env, load->done);
  if (state == XT_STAGED_FINISHED) *value = xt_am_done;
  else if (state == XT_STAGED_WAITING) *value = enif_make_tuple3(env, xt_am_wait, xt_make_bool(again), done);
  else
    *value = enif_make_tuple4(env, xt_am_need, enif_make_uint64(env, load->need.offset),
                              enif_make_uint64(env, load->need.size), done);
  return status;
}

/* device_load_fill(device_load, binary | nil)
 *   :: {:ok, {:need, offset, size, bytes done} | {:wait, again?, bytes done} | :done, bytes} | {:error, e}
 *
 * For a file that Elixir reads: takes the bytes that the call before it needed. After :wait it is called with the same
 * bytes if `again?`, else with nil. */
ERL_NIF_TERM xt_nif_device_load_fill(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return run(env, argv, fill);
}

static xt_status ahead(ErlNifEnv *env, device_load *self, const ERL_NIF_TERM argv[], ERL_NIF_TERM *value,
                       xt_error *error) {
  xt_need ranges[MAX_AHEAD];
  (void)argv, (void)error;
  size_t count = xt_staged_load_ahead(&self->contents->load, ranges, MAX_AHEAD);
  *value = enif_make_list(env, 0);
  while (count--) {
    ERL_NIF_TERM offset = enif_make_uint64(env, ranges[count].offset), size = enif_make_uint64(env, ranges[count].size);
    *value = enif_make_list_cell(env, enif_make_tuple2(env, offset, size), *value);
  }
  return XT_STATUS_ok;
}

/* device_load_ahead(device_load) :: {:ok, [{offset, size}], 0} | {:error, e}     the ranges after the current need */
ERL_NIF_TERM xt_nif_device_load_ahead(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return run(env, argv, ahead);
}

static xt_status ready(ErlNifEnv *env, device_load *self, const ERL_NIF_TERM argv[], ERL_NIF_TERM *value,
                       xt_error *error) {
  contents *c = self->contents;
  bool all = true, done;
  xt_status status = XT_STATUS_ok;
  (void)env, (void)argv;
  for (size_t i = 0; i < c->queue_count && status == XT_STATUS_ok; i++) {
    if (!c->queues[i].stager) continue;
    status = xt_torch->stager_done(c->queues[i].stager, &done, error);
    all = all && status == XT_STATUS_ok && done;
  }
  c->load.failed |= status != XT_STATUS_ok;
  *value = xt_make_bool(all);
  return status;
}

/* device_load_ready(device_load) :: {:ok, boolean, 0} | {:error, e}     whether all copies are done */
ERL_NIF_TERM xt_nif_device_load_ready(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return run(env, argv, ready);
}

/* ---- Finish ---- */

static xt_status make_view(contents *c, const xt_device_load_item *item, xt_tensor **out, xt_error *error) {
  xt_status status = xt_device_load_allocate(c, item->unit, error); /* a unit without bytes has none yet */
  if (status != XT_STATUS_ok) return status;
  const xt_tensor_desc *t = item->desc;
  if (!t) {
    const xt_tensor_info *info = &item->source->info;
    xt_tensor_layout layout = {info->ndim, info->sizes, info->strides, 0};
    status = xt_torch->tensor_view(c->memory[item->unit], info->dtype, &layout, out, error);
    if (status == XT_STATUS_ok) (*out)->requires_grad = item->source->requires_grad;
    return status;
  }
  /* A part of a storage begins with the first element of its tensor. */
  bool part = c->unit_sizes[item->unit] != c->load.reader.checkpoint->records[t->storage]->size;
  xt_tensor_layout layout = {(int)t->ndim, t->sizes, t->strides, part ? 0 : t->offset};
  status = xt_torch->tensor_view(c->memory[item->unit], t->dtype, &layout, out, error);
  if (status == XT_STATUS_ok) (*out)->requires_grad = t->requires_grad;
  return status;
}

/* A tensor that the file contains several times is made once. `first` has one term for each entry of the file. */
static xt_status make_terms(ErlNifEnv *env, contents *c, ERL_NIF_TERM *terms, ERL_NIF_TERM *first, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  size_t made = 0;
  for (; made < c->item_count && status == XT_STATUS_ok; made++) {
    const xt_tensor_desc *t = c->items[made].desc;
    xt_tensor *tensor;
    if (t && (terms[made] = first[t->first_entry])) continue;
    status = make_view(c, &c->items[made], &tensor, error);
    if (status == XT_STATUS_ok) terms[made] = xt_make_tensor(env, tensor);
    if (status == XT_STATUS_ok && t) first[t->first_entry] = terms[made];
  }
  if (status != XT_STATUS_ok) xt_release_terms(env, terms, made - 1); /* the last one failed */
  return status;
}

static xt_status check_sources(const contents *c, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  for (size_t i = 0; i < c->item_count && status == XT_STATUS_ok; i++)
    if (c->items[i].source) status = xt_tensor_check_memory(c->items[i].source, error);
  return status;
}

static xt_status finish(ErlNifEnv *env, device_load *self, const ERL_NIF_TERM argv[], ERL_NIF_TERM *value,
                        xt_error *error) {
  contents *c = self->contents;
  ERL_NIF_TERM is_ready;
  if (c->load.failed || c->load.next < c->load.count) return XT_STATUS_bad_argument;
  xt_status status = ready(env, self, argv, &is_ready, error);
  if (status == XT_STATUS_ok && is_ready != xt_am_true) return XT_STATUS_bad_argument;
  if (status == XT_STATUS_ok) status = check_sources(c, error);
  size_t entries = self->checkpoint ? c->load.reader.checkpoint->index.count : 0;
  ERL_NIF_TERM *terms = calloc(c->item_count + 1, sizeof *terms), *first = calloc(entries + 1, sizeof *first);
  if (status == XT_STATUS_ok && (!terms || !first)) status = no_memory(error);
  if (status == XT_STATUS_ok) status = make_terms(env, c, terms, first, error);
  if (status == XT_STATUS_ok) *value = enif_make_list_from_array(env, terms, (unsigned)c->item_count);
  free(terms);
  free(first);
  return check_file(self, status, error);
}

/* device_load_finish(device_load) :: {:ok, [tensor], bytes} | {:error, e}     when it is ready */
ERL_NIF_TERM xt_nif_device_load_finish(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return run(env, argv, finish);
}

/* device_load_close(device_load) :: :ok     also if it was closed before, or if another process is using it */
ERL_NIF_TERM xt_nif_device_load_close(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  device_load *self;
  xt_error error;
  (void)argc;
  if (!enif_get_resource(env, argv[0], xt_device_load_type, (void **)&self)) return enif_make_badarg(env);
  if (xt_busy_enter(&self->busy, "", &error) != XT_STATUS_ok) return xt_am_ok; /* the destructor closes it */
  xt_device_load_close(self);
  xt_busy_leave(&self->busy);
  return xt_am_ok;
}
