/* Batch loads: read many tensors of an open checkpoint, with one call or in steps.
 *
 *   batch_load_run
 *   batch_load_begin → batch_load_step (files) or batch_load_fill (sources) until :done → batch_load_finish
 *   batch_load_close at any time
 */
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/batch_load.h"
#include "nif/busy.h"
#include "nif/checkpoint.h"
#include "nif/frozen_binary.h"
#include "nif/materialize.h"
#include "nif/table.h"
#include "nif/tensor.h"

/* A batch load in progress. It holds the checkpoint until it is closed. */
typedef struct {
  xt_busy busy;
  bool begun;
  xt_checkpoint_resource *checkpoint;
  xt_batch_load load;
  size_t *entries; /* indices of the entries to load, in order; NULL for all */
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
  xt_checkpoint_let_go(self->checkpoint);
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
  unsigned length;
  if (term == xt_am_all) return self->count = limit, XT_STATUS_ok;
  if (!enif_get_list_length(env, term, &length)) return XT_STATUS_bad_argument;
  self->entries = malloc((length + 1) * sizeof *self->entries);
  if (!self->entries) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors");
  while (enif_get_list_cell(env, term, &head, &term)) {
    if (!enif_get_uint64(env, head, &i) || i >= limit) return XT_STATUS_bad_argument;
    self->entries[self->count++] = i;
  }
  return XT_STATUS_ok;
}

static uint64_t add_saturated(uint64_t a, uint64_t b) { return b > INT64_MAX - a ? INT64_MAX : a + b; }

/* The tensors of a storage that are loaded, and their bytes. */
typedef struct {
  size_t tensors;
  uint64_t bytes;
} usage;

/* Sums up the bytes of the tensors, of all and for each storage. */
static uint64_t sum_bytes(const batch_load *self, const xt_checkpoint *c, usage *used) {
  uint64_t total = 0;
  for (size_t i = 0; i < self->count; i++) {
    const xt_tensor_desc *t = c->index.entries[self->entries ? self->entries[i] : i].tensor;
    uint64_t bytes = (uint64_t)xt_tensor_desc_bytes(t);
    total = add_saturated(total, bytes);
    if (t->storage != XT_NO_STORAGE) {
      used[t->storage].tensors++;
      used[t->storage].bytes = add_saturated(used[t->storage].bytes, bytes);
    }
    for (uint32_t part = 0; part < t->part_count; part++)
      if (t->more->parts[part]->storage != XT_NO_STORAGE) used[t->more->parts[part]->storage] = (usage){1, INT64_MAX};
  }
  return total;
}

/* Returns whether to read the storage as a whole. If only little of it is used, and `sparing`, batch_load_finish reads
 * the tensors alone. If it is compressed or verified, each of them reads the whole storage, so it must be only one. */
static bool is_wanted(const xt_checkpoint *c, size_t storage, usage used, bool sparing, bool verify) {
  const xt_record *record = c->records[storage];
  bool alone = used.tensors == 1 || (record && record->method == XT_RECORD_STORED && !verify);
  return used.tensors && record && (!sparing || !alone || used.bytes >= record->size / 2);
}

static xt_status begin(ErlNifEnv *env, batch_load *self, xt_checkpoint_resource *resource, bool verify, bool sparing,
                       xt_error *error) {
  const xt_checkpoint *c = &resource->handle->checkpoint;
  size_t storages = c->storages.count;
  xt_arena arena = {.expected = storages * (sizeof(usage) + sizeof(bool))};
  usage *used = xt_arena_alloc(&arena, storages + 1, sizeof *used);
  bool *wanted = xt_arena_alloc(&arena, storages + 1, sizeof *wanted);
  xt_status status =
      used && wanted ? XT_STATUS_ok : xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors");
  if (status == XT_STATUS_ok) status = xt_checkpoint_check_total(resource->handle, sum_bytes(self, c, used), error);
  if (status == XT_STATUS_ok) {
    for (size_t i = 0; i < storages; i++) wanted[i] = is_wanted(c, i, used[i], sparing, verify);
    xt_record_reader reader = xt_checkpoint_handle_reader(resource->handle, env, verify);
    status = xt_batch_load_begin(&self->load, &reader, wanted, error);
    xt_checkpoint_hold(resource);
    self->checkpoint = resource;
    self->begun = true;
  }
  xt_arena_free(&arena);
  return status;
}

static ERL_NIF_TERM begin_load(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  xt_error error;
  bool verify, sparing;
  if (!xt_get_bool(env, argv[2], &verify) || !xt_get_bool(env, argv[3], &sparing)) return enif_make_badarg(env);
  batch_load *self = enif_alloc_resource(xt_batch_load_type, sizeof *self);
  memset(self, 0, sizeof *self);
  ERL_NIF_TERM term = enif_make_resource(env, self);
  enif_release_resource(self);
  xt_status status = get_entries(env, argv[1], resource->handle->checkpoint.index.count, self, &error);
  if (status == XT_STATUS_bad_argument) return enif_make_badarg(env);
  if (status == XT_STATUS_ok) status = begin(env, self, resource, verify, sparing, &error);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  return xt_make_ok(env, enif_make_tuple2(env, term, enif_make_uint64(env, self->load.total)));
}

/* batch_load_begin(checkpoint, [entry's index] | :all, verify?, sparing?)
 *   :: {:ok, {batch_load, bytes to read}, 0} | {:error, e}
 *
 * If `sparing?`, storages of which only a small part is used are not read as a whole. Not for sources. */
ERL_NIF_TERM xt_nif_batch_load_begin(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return xt_checkpoint_run(env, argv, begin_load);
}

/* ---- Steps ---- */

/* One step of a batch load. Sets *value to its result. */
typedef xt_status batch_call(ErlNifEnv *env, batch_load *self, const ERL_NIF_TERM argv[], ERL_NIF_TERM *value,
                             xt_error *error);

/* The wrapper of the NIFs below: enters the batch load, runs the call and leaves. A call returns bad_argument, without
 * a message, for a term of the wrong type. */
static ERL_NIF_TERM run(ErlNifEnv *env, const ERL_NIF_TERM argv[], batch_call *call) {
  batch_load *self;
  ERL_NIF_TERM value = xt_am_nil;
  xt_error error = {.status = XT_STATUS_ok};
  if (!enif_get_resource(env, argv[0], xt_batch_load_type, (void **)&self)) return enif_make_badarg(env);
  xt_status status = xt_busy_enter(&self->busy, "using this batch load", &error);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  if (self->begun) {
    self->load.reader.context = env;
    status = call(env, self, argv, &value, &error);
  } else {
    status = xt_error_set(&error, XT_STATUS_released, "this batch load is closed; start a new one");
  }
  xt_busy_leave(&self->busy);
  bool badarg = status == XT_STATUS_bad_argument && error.status == XT_STATUS_ok;
  return badarg ? enif_make_badarg(env) : xt_make_result(env, status, value, &error);
}

static xt_status step(ErlNifEnv *env, batch_load *self, const ERL_NIF_TERM argv[], ERL_NIF_TERM *value,
                      xt_error *error) {
  ErlNifUInt64 bytes;
  bool finished = false;
  if (!enif_get_uint64(env, argv[1], &bytes)) return XT_STATUS_bad_argument;
  xt_status status = xt_batch_load_step(&self->load, bytes, &finished, error);
  if (finished || status != XT_STATUS_ok) status = xt_checkpoint_check_file(self->checkpoint->handle, status, error);
  *value = finished ? xt_am_done : enif_make_tuple2(env, xt_am_more, enif_make_uint64(env, self->load.done));
  return status;
}

/* batch_load_step(batch_load, bytes) :: {:ok, {:more, bytes done} | :done, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_batch_load_step(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return run(env, argv, step);
}

static xt_status take_bytes(batch_load *self, ERL_NIF_TERM binary, xt_error *error) {
  xt_region *bytes = xt_region_from_binary(binary);
  if (!bytes) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors");
  xt_status status = xt_batch_load_fill(&self->load, bytes, error);
  xt_region_drop_later(bytes);
  return status;
}

static xt_status fill(ErlNifEnv *env, batch_load *self, const ERL_NIF_TERM argv[], ERL_NIF_TERM *value,
                      xt_error *error) {
  xt_need need = {0, 0, NULL};
  bool first = argv[1] == xt_am_nil;
  if (!first && !enif_is_binary(env, argv[1])) return XT_STATUS_bad_argument;
  xt_status status = first ? XT_STATUS_ok : take_bytes(self, argv[1], error);
  if (status == XT_STATUS_ok) status = xt_batch_load_need(&self->load, &need, error);
  *value = need.size ? enif_make_tuple4(env, xt_am_need, enif_make_uint64(env, need.offset),
                                        enif_make_uint64(env, need.size), enif_make_uint64(env, self->load.done))
                     : xt_am_done;
  return status;
}

/* batch_load_fill(batch_load, binary | nil) :: {:ok, {:need, offset, size, bytes done} | :done, bytes} | {:error, e}
 *   for a file that Elixir reads: takes the bytes that the call before it needed */
ERL_NIF_TERM xt_nif_batch_load_fill(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return run(env, argv, fill);
}

/* Makes the tensors of the storages that were read, or the object if there is a style. */
static xt_status make_value(ErlNifEnv *env, batch_load *self, ERL_NIF_TERM style_term, ERL_NIF_TERM *value,
                            xt_error *error) {
  xt_batch_load *load = &self->load;
  xt_object_style style;
  bool whole = style_term != xt_am_nil;
  bool complete = self->count == load->reader.checkpoint->index.count;
  if (whole && (!complete || !xt_get_object_style(env, style_term, &style))) return XT_STATUS_bad_argument;
  if (load->failed || load->next < load->count || load->region) return XT_STATUS_bad_argument;
  xt_storage_origin origin = {load->reader.checkpoint, &load->reader, load->regions};
  xt_status status =
      xt_materialize_entries(env, &origin, self->entries, self->count, whole ? &style : NULL, value, error);
  return xt_checkpoint_check_file(self->checkpoint->handle, status, error);
}

static xt_status finish(ErlNifEnv *env, batch_load *self, const ERL_NIF_TERM argv[], ERL_NIF_TERM *value,
                        xt_error *error) {
  return make_value(env, self, argv[1], value, error);
}

/* batch_load_finish(batch_load, nil | {ordered?, MapSet of one element}) :: {:ok, [tensor] | object, bytes} |
 *   {:error, e}     called after :done; the object needs all entries */
ERL_NIF_TERM xt_nif_batch_load_finish(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return run(env, argv, finish);
}

/* ---- One call ---- */

/* Larger loads have steps, so that the file calls of others have a turn on the dirty schedulers. */
enum { MAX_ONE_CALL = 512 << 20 };

static bool is_one_call(const xt_batch_load *load) {
  const xt_record_reader *r = &load->reader;
  return load->total <= MAX_ONE_CALL || (r->memory && !r->verify && !r->copies);
}

static ERL_NIF_TERM run_load(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  batch_load self = {.begun = false};
  ERL_NIF_TERM value = xt_am_nil;
  xt_error error = {.status = XT_STATUS_ok};
  bool verify, sparing, finished;
  if (!xt_get_bool(env, argv[2], &verify) || !xt_get_bool(env, argv[3], &sparing)) return enif_make_badarg(env);
  xt_status status = get_entries(env, argv[1], resource->handle->checkpoint.index.count, &self, &error);
  if (status == XT_STATUS_ok) status = begin(env, &self, resource, verify, sparing, &error);
  bool one_call = status != XT_STATUS_ok || is_one_call(&self.load);
  if (!one_call) value = xt_am_large;
  if (status == XT_STATUS_ok && one_call) status = xt_batch_load_step(&self.load, INT64_MAX, &finished, &error);
  if (status != XT_STATUS_ok) status = xt_checkpoint_check_file(resource->handle, status, &error);
  else if (one_call) status = make_value(env, &self, argv[4], &value, &error);
  close_load(&self);
  free(self.entries);
  bool badarg = status == XT_STATUS_bad_argument && error.status == XT_STATUS_ok;
  return badarg ? enif_make_badarg(env) : xt_make_result(env, status, value, &error);
}

/* batch_load_run(checkpoint, [entry's index] | :all, verify?, sparing?, nil | {ordered?, MapSet of one element})
 *   :: {:ok, [tensor] | object | :large, bytes} | {:error, e}     all of the above, for files and binaries; :large if
 * nothing was read, because it takes several steps */
ERL_NIF_TERM xt_nif_batch_load_run(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return xt_checkpoint_run(env, argv, run_load);
}

static ERL_NIF_TERM words(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  (void)argv;
  uint64_t bytes = resource->handle->checkpoint.index.on_heap;
  return xt_make_ok(env, enif_make_uint64(env, bytes / sizeof(ERL_NIF_TERM)));
}

/* batch_load_words(checkpoint) :: {:ok, words, 0} | {:error, e}     about what the object needs on the heap */
ERL_NIF_TERM xt_nif_batch_load_words(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return xt_checkpoint_run(env, argv, words);
}

/* ---- Sources, close ---- */

enum { MAX_AHEAD = 64 };

static xt_status ahead(ErlNifEnv *env, batch_load *self, const ERL_NIF_TERM argv[], ERL_NIF_TERM *value,
                       xt_error *error) {
  xt_need ranges[MAX_AHEAD];
  (void)argv, (void)error;
  size_t count = xt_batch_load_ahead(&self->load, ranges, MAX_AHEAD);
  *value = enif_make_list(env, 0);
  while (count--) {
    ERL_NIF_TERM offset = enif_make_uint64(env, ranges[count].offset), size = enif_make_uint64(env, ranges[count].size);
    *value = enif_make_list_cell(env, enif_make_tuple2(env, offset, size), *value);
  }
  return XT_STATUS_ok;
}

/* batch_load_ahead(batch_load) :: {:ok, [{offset, size}], 0} | {:error, e}     the ranges after the current need */
ERL_NIF_TERM xt_nif_batch_load_ahead(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return run(env, argv, ahead);
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
