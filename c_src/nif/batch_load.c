/* Batch loads: read many tensors of an open checkpoint, in steps. */
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/batch_load.h"
#include "core/memory/memory.h"
#include "nif/busy.h"
#include "nif/checkpoint.h"
#include "nif/frozen_binary.h"
#include "nif/materialize.h"
#include "nif/table.h"
#include "nif/tensor.h"

/* A batch load in progress. It has entered the checkpoint until it is closed. Only one caller at a time can use it. */
typedef struct {
  xt_busy busy;
  bool begun;
  xt_checkpoint_resource *checkpoint;
  xt_batch_load load;
  size_t *entries; /* indices of the entries to load, in order */
  size_t count;
} batch_load;

/* What the reaper thread frees of a batch load: its regions may be large. */
typedef struct {
  xt_reapable reapable; /* must be first */
  xt_batch_load load;
} discarded_load;

static void free_discarded(xt_reapable *self) {
  xt_batch_load_free(&((discarded_load *)self)->load);
  free(self);
}

/* Frees what the load holds: storages that are not part of a tensor, and those whose tensors are released later. */
static void close_load(batch_load *self) {
  if (!self->begun) return;
  self->begun = false;
  discarded_load *discarded = malloc(sizeof *discarded);
  if (discarded) {
    *discarded = (discarded_load){{NULL, free_discarded}, self->load};
    xt_reaper_push(&discarded->reapable);
  } else {
    xt_batch_load_free(&self->load);
  }
  xt_checkpoint_leave(self->checkpoint);
  enif_release_resource(self->checkpoint);
}

static void destroy_batch_load(ErlNifEnv *env, void *object) {
  batch_load *self = object;
  (void)env;
  close_load(self);
  free(self->entries);
}

const ErlNifResourceTypeInit xt_batch_load_callbacks = {.dtor = destroy_batch_load};

/* ---- Begin ---- */

/* Returns bad_argument, without a message, for a term of the wrong type. */
static xt_status get_entries(ErlNifEnv *env, ERL_NIF_TERM term, size_t limit, batch_load *self, xt_error *error) {
  ERL_NIF_TERM head;
  ErlNifUInt64 i;
  unsigned length = (unsigned)limit;
  bool all = term == xt_am_all;
  if (!all && !enif_get_list_length(env, term, &length)) return XT_STATUS_bad_argument;
  self->entries = malloc((length + 1) * sizeof *self->entries);
  if (!self->entries) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors");
  while (all && self->count < limit) self->entries[self->count] = self->count, self->count++;
  while (!all && enif_get_list_cell(env, term, &head, &term)) {
    if (!enif_get_uint64(env, head, &i) || i >= limit) return XT_STATUS_bad_argument;
    self->entries[self->count++] = i;
  }
  return XT_STATUS_ok;
}

/* Marks the storages of the entries and sums up the bytes of their tensors. */
static uint64_t select_storages(const batch_load *self, const xt_checkpoint *c, bool *wanted) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < self->count; i++) {
    const xt_tensor_desc *t = c->index.entries[self->entries[i]].tensor;
    bytes += (uint64_t)xt_tensor_desc_bytes(t);
    if (bytes > INT64_MAX) bytes = INT64_MAX; /* each tensor is below 2^63 bytes, so the sum cannot wrap */
    if (t->storage != XT_NO_STORAGE) wanted[t->storage] = true;
    for (uint32_t part = 0; part < t->part_count; part++) wanted[t->more->parts[part]->storage] = true;
  }
  return bytes;
}

/* The caller has entered the checkpoint. Once `begun` is set, the batch load leaves it in its destructor. */
static xt_status begin(ErlNifEnv *env, batch_load *self, xt_checkpoint_resource *resource, bool verify,
                       uint64_t *tensor_bytes, xt_error *error) {
  const xt_checkpoint *c = &resource->handle->checkpoint;
  bool *wanted = calloc(c->rebuild.storage_count + 1, sizeof *wanted);
  if (!wanted) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors");
  *tensor_bytes = select_storages(self, c, wanted);
  xt_record_reader reader = xt_checkpoint_handle_reader(resource->handle, env, verify);
  xt_status status = xt_batch_load_begin(&self->load, &reader, wanted, error);
  free(wanted);
  enif_keep_resource(resource);
  self->checkpoint = resource;
  self->begun = true;
  return status;
}

/* batch_load_begin(checkpoint, [entry's index] | :all, verify?)
 *   :: {:ok, {batch_load, bytes to read, bytes of all tensors}, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_batch_load_begin(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_checkpoint_resource *resource;
  uint64_t tensor_bytes = 0;
  xt_error error;
  bool verify;
  (void)argc;
  if (!xt_get_checkpoint(env, argv[0], &resource) || !xt_get_bool(env, argv[2], &verify)) return enif_make_badarg(env);
  if (xt_checkpoint_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  batch_load *self = enif_alloc_resource(xt_batch_load_type, sizeof *self);
  memset(self, 0, sizeof *self);
  ERL_NIF_TERM term = enif_make_resource(env, self);
  enif_release_resource(self);
  xt_status status = get_entries(env, argv[1], resource->handle->checkpoint.index.count, self, &error);
  bool valid = status != XT_STATUS_bad_argument;
  if (status == XT_STATUS_ok) status = begin(env, self, resource, verify, &tensor_bytes, &error);
  if (!self->begun) xt_checkpoint_leave(resource);
  if (!valid) return enif_make_badarg(env);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  return xt_make_ok(
      env, enif_make_tuple3(env, term, enif_make_uint64(env, self->load.total), enif_make_uint64(env, tensor_bytes)));
}

/* ---- Steps ---- */

/* After this many tensors, asks whether the caller is alive. */
enum { STOP_TENSORS = 1024 };

/* Makes the list of all tensors. A tensor that the file contains several times is made once. */
static xt_status make_tensors(ErlNifEnv *env, const batch_load *self, ERL_NIF_TERM *out, xt_error *error) {
  const xt_checkpoint *c = self->load.reader.checkpoint;
  ERL_NIF_TERM *terms = enif_alloc((self->count + 1) * sizeof *terms);
  ERL_NIF_TERM *first = calloc(c->index.count + 1, sizeof *first); /* the term by 1 + the tensor's first entry */
  xt_status status =
      terms && first ? XT_STATUS_ok : xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors");
  xt_storage_origin origin = {c, NULL, self->load.regions};
  size_t made = 0;
  for (; made < self->count && status == XT_STATUS_ok; made++) {
    const xt_tensor_desc *tensor = c->index.entries[self->entries[made]].tensor;
    terms[made] = first[tensor->first_entry];
    if (terms[made]) continue;
    status = xt_materialize_term(env, &origin, tensor, &terms[made], error);
    first[tensor->first_entry] = terms[made];
    if (status == XT_STATUS_ok && made % STOP_TENSORS == STOP_TENSORS - 1)
      status = xt_record_reader_check_stop(&self->load.reader, error);
  }
  if (status == XT_STATUS_ok) *out = enif_make_list_from_array(env, terms, (unsigned)self->count);
  else if (made) xt_release_terms(env, terms, made - 1); /* the last one failed */
  enif_free(terms);
  free(first);
  return status;
}

/* Enters a batch load for one call. Returns false and the error's term in *out if it is closed or in use. */
static bool enter_load(ErlNifEnv *env, batch_load *self, ERL_NIF_TERM *out) {
  xt_error error;
  bool entered = xt_busy_enter(&self->busy, "using this batch load", &error) == XT_STATUS_ok;
  if (entered && self->begun) {
    self->load.reader.context = env;
    return true;
  }
  if (entered) {
    xt_busy_leave(&self->busy);
    xt_error_set(&error, XT_STATUS_released, "this batch load is closed; start a new one");
  }
  *out = xt_make_error(env, &error);
  return false;
}

/* batch_load_step(batch_load, bytes) :: {:ok, {:more, bytes done} | {:done, [tensor]}, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_batch_load_step(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  batch_load *self;
  ErlNifUInt64 budget;
  xt_error error;
  bool finished = false;
  ERL_NIF_TERM list = xt_am_nil;
  (void)argc;
  if (!enif_get_resource(env, argv[0], xt_batch_load_type, (void **)&self) || !enif_get_uint64(env, argv[1], &budget))
    return enif_make_badarg(env);
  if (!enter_load(env, self, &list)) return list;
  xt_checkpoint_handle *handle = self->checkpoint->handle;
  xt_status status = xt_batch_load_step(&self->load, budget, &finished, &error);
  if (finished || status != XT_STATUS_ok) status = xt_checkpoint_check_file(handle, status, &error);
  if (status == XT_STATUS_ok && finished) status = make_tensors(env, self, &list, &error);
  uint64_t done = self->load.done;
  xt_busy_leave(&self->busy);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  return xt_make_ok(env, finished ? enif_make_tuple2(env, xt_am_done, list)
                                  : enif_make_tuple2(env, xt_am_more, enif_make_uint64(env, done)));
}

static xt_status fill(batch_load *self, ERL_NIF_TERM binary, xt_error *error) {
  xt_region *bytes = xt_region_from_binary(binary);
  if (!bytes) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors");
  xt_status status = xt_batch_load_fill(&self->load, bytes, error);
  xt_region_drop_later(bytes);
  return status;
}

/* batch_load_fill(batch_load, binary | nil) :: {:ok, {:need, offset, size, bytes done} | {:done, [tensor]}, bytes} |
 *   {:error, e}     for a file that Elixir reads: takes the bytes that the call before it needed */
ERL_NIF_TERM xt_nif_batch_load_fill(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  batch_load *self;
  xt_error error;
  xt_need need = {0, 0, NULL};
  ERL_NIF_TERM list = xt_am_nil;
  (void)argc;
  bool first = argv[1] == xt_am_nil;
  if (!enif_get_resource(env, argv[0], xt_batch_load_type, (void **)&self) || (!first && !enif_is_binary(env, argv[1])))
    return enif_make_badarg(env);
  if (!enter_load(env, self, &list)) return list;
  xt_status status = first ? XT_STATUS_ok : fill(self, argv[1], &error);
  if (status == XT_STATUS_ok) status = xt_batch_load_need(&self->load, &need, &error);
  if (status == XT_STATUS_ok && !need.size) status = make_tensors(env, self, &list, &error);
  uint64_t done = self->load.done;
  xt_busy_leave(&self->busy);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  if (!need.size) return xt_make_ok(env, enif_make_tuple2(env, xt_am_done, list));
  return xt_make_ok(env, enif_make_tuple4(env, xt_am_need, enif_make_uint64(env, need.offset),
                                          enif_make_uint64(env, need.size), enif_make_uint64(env, done)));
}

/* batch_load_close(batch_load) :: :ok     also if it was closed before, or if another process is using it */
ERL_NIF_TERM xt_nif_batch_load_close(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  batch_load *self;
  xt_error error;
  (void)argc;
  if (!enif_get_resource(env, argv[0], xt_batch_load_type, (void **)&self)) return enif_make_badarg(env);
  if (xt_busy_enter(&self->busy, "", &error) != XT_STATUS_ok) return xt_am_ok; /* the destructor closes it */
  close_load(self);
  xt_busy_leave(&self->busy);
  return xt_am_ok;
}
