/* Plans the save of a term, and saves it to a file in steps. */
#include "nif/saver.h"

#include <stdlib.h>
#include <string.h>

#include "core/formats/legacy.h"
#include "core/formats/npy.h"
#include "core/formats/safetensors.h"
#include "core/formats/torch_stream.h"
#include "core/formats/zip.h"
#include "nif/pickle_term.h"
#include "nif/save_tensor.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* ---- The resource ---- */

static void free_job(xt_reapable *self) {
  xt_save_job *job = (xt_save_job *)self;
  xt_saver_free(&job->saver);
  xt_region_drop(job->fetched_region);
  if (job->file_open) xt_atomic_file_close(&job->file);
  xt_save_plan_free(&job->plan);
  free(job);
}

void xt_save_job_keep(void *owner) { atomic_fetch_add(&((xt_save_job *)owner)->references, 1); }

void xt_save_job_drop(void *owner) {
  xt_save_job *job = owner;
  if (atomic_fetch_sub(&job->references, 1) == 1) xt_reaper_push(&job->reapable);
}

static void destroy_saver(ErlNifEnv *env, void *object) {
  xt_saver_resource *resource = object;
  (void)env;
  if (!resource->job) return;
  xt_saver_stop(&resource->job->saver);
  xt_save_job_drop(resource->job);
}

const ErlNifResourceTypeInit xt_saver_callbacks = {.dtor = destroy_saver};

bool xt_get_saver(ErlNifEnv *env, ERL_NIF_TERM term, xt_saver_resource **out) {
  return enif_get_resource(env, term, xt_saver_type, (void **)out);
}

xt_status xt_save_job_no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while saving");
}

/* ---- Begin ---- */

/* Brings a payload that is not in CPU memory there. */
static xt_status fetch(void *context, size_t payload, uint64_t from, const uint8_t **data, uint64_t *size,
                       xt_error *error) {
  xt_save_job *job = context;
  const xt_payload *wanted = &job->plan.payloads[payload];
  const xt_save_view *view = &job->plan.views[wanted->view];
  bool named = job->plan.format->refuses; /* a format of named tensors */
  xt_status status = xt_save_tensor_fetch(view, wanted, named, from, &job->fetched, size, error);
  if (status != XT_STATUS_ok) return status;
  *data = job->fetched->info.data;
  job->fetched_size = *size;
  return status;
}

static void drop_fetched(void *context, size_t payload) {
  xt_save_job *job = context;
  (void)payload;
  if (job->fetched) xt_tensor_drop(job->fetched);
  job->fetched = NULL;
}

static xt_save_job *new_job(const xt_format_writer *format, const ErlNifBinary *root, bool compact) {
  xt_save_job *job = calloc(1, sizeof *job);
  if (!job) return NULL;
  job->reapable.run = free_job;
  atomic_init(&job->references, 1);
  job->plan.format = format;
  job->plan.compact = compact;
  job->plan.root = xt_arena_text(&job->plan.arena, (const char *)root->data, root->size);
  job->saver.plan = &job->plan;
  job->saver.fetch = fetch;
  job->saver.done = drop_fetched;
  job->saver.context = job;
  job->saver.keeper = (xt_owner){xt_save_job_keep, xt_save_job_drop, job};
  return job;
}

static const xt_format_writer *get_format(ERL_NIF_TERM term) {
  if (term == xt_am_zip) return &xt_zip_write;
  if (term == xt_am_legacy) return &xt_legacy_write;
  if (term == xt_am_streaming) return &xt_torch_stream_write;
  if (term == xt_am_npy) return &xt_npy_write;
  if (term == xt_am_npz) return &xt_npz_write;
  return term == xt_am_safetensors ? &xt_safetensors_write : NULL;
}

/* Decodes [{key, value}] of strings. */
static bool get_metadata(ErlNifEnv *env, ERL_NIF_TERM list, xt_save_plan *plan) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  int arity;
  ErlNifBinary text;
  while (enif_get_list_cell(env, list, &head, &list)) {
    if (!enif_get_tuple(env, head, &arity, &pair) || arity != 2) return false;
    for (int i = 0; i < 2; i++) {
      if (!enif_inspect_binary(env, pair[i], &text)) return false;
      xt_save_plan_put_metadata(plan, text.data, text.size);
    }
  }
  return enif_is_empty_list(env, list);
}

static bool get_flags(ErlNifEnv *env, ERL_NIF_TERM term, bool *compact, bool *duplicate) {
  const ERL_NIF_TERM *flags;
  int arity;
  return enif_get_tuple(env, term, &arity, &flags) && arity == 2 && xt_get_bool(env, flags[0], compact) &&
         xt_get_bool(env, flags[1], duplicate);
}

static xt_status plan_object(ErlNifEnv *env, ERL_NIF_TERM term, xt_save_plan *plan, xt_error *error) {
  xt_draft draft;
  xt_draft_begin(&draft, plan);
  xt_status status = xt_pickle_term(env, term, &draft, error);
  if (status == XT_STATUS_ok) status = xt_draft_finish(&draft, error);
  xt_draft_free(&draft);
  return status;
}

/* Tensors are scattered in memory, so they are added in batches, of which each short loop follows one reference: the
 * CPU then waits for the memory of several of them at once. */
enum { BATCH = 64, LINE = 64 };

typedef struct {
  ERL_NIF_TERM key, value, module, term; /* the pair; the module and the resource of the value */
  ErlNifBinary name;
  xt_tensor_resource *resource;
} named_tensor;

typedef struct {
  ErlNifEnv *env;
  xt_save_plan *plan;
  named_tensor batch[BATCH];
  size_t count;
  bool valid; /* all terms so far are names and tensors */
} naming;

static void prefetch(const void *data, size_t size) {
  for (size_t at = 0; at < size; at += LINE) __builtin_prefetch((const char *)data + at);
}

/* Terms that are not values are addresses with a tag in the low bits. It does no harm to prefetch a value. */
static void prefetch_term(ERL_NIF_TERM term, size_t size) {
  enum { TAG = 7 };
  prefetch((const void *)(uintptr_t)(term & ~(ERL_NIF_TERM)TAG), size);
}

/* Other structs have a tensor in them, too: a storage, or an instance of a subclass, is more than its tensor. */
static bool is_tensor(ErlNifEnv *env, ERL_NIF_TERM value, ERL_NIF_TERM *module) {
  return enif_get_map_value(env, value, xt_am___struct__, module) &&
         (*module == xt_am_module_tensor || *module == xt_am_module_blob_view || *module == xt_am_module_cast);
}

static bool find_tensor(ErlNifEnv *env, named_tensor *named) {
  if (!enif_inspect_binary(env, named->key, &named->name) || !is_tensor(env, named->value, &named->module))
    return false;
  named->term = xt_tensor_term(env, named->value);
  prefetch_term(named->term, LINE);
  return true;
}

static bool find_resource(ErlNifEnv *env, named_tensor *named) {
  if (!enif_get_resource(env, named->term, xt_tensor_type, (void **)&named->resource)) return false;
  prefetch(named->resource->handle, sizeof(xt_tensor)); /* it may be released: then it is not read */
  return true;
}

static xt_status add_named(const naming *n, const named_tensor *named, xt_error *error) {
  xt_tensor *handle;
  xt_save_tensor tensor;
  xt_dtype dtype;
  xt_status status = xt_tensor_take(named->resource, &handle, error);
  if (status != XT_STATUS_ok) return status;
  status = xt_save_tensor_describe(handle, &tensor, error);
  bool is_cast = named->module == xt_am_module_cast && xt_get_cast(n->env, named->value, &dtype);
  if (status == XT_STATUS_ok && is_cast) xt_save_tensor_cast(&tensor, dtype);
  if (status == XT_STATUS_ok)
    status = xt_save_plan_add_named(n->plan, (const char *)named->name.data, named->name.size, &tensor, error);
  xt_tensor_drop(handle);
  return status;
}

static xt_status add_batch(naming *n, xt_error *error) {
  named_tensor *batch = n->batch;
  size_t count = n->count;
  xt_status status = XT_STATUS_ok;
  n->count = 0;
  for (size_t i = 0; i < count && n->valid; i++) n->valid = find_tensor(n->env, &batch[i]);
  for (size_t i = 0; i < count && n->valid; i++) n->valid = find_resource(n->env, &batch[i]);
  for (size_t i = 0; i < count && n->valid && status == XT_STATUS_ok; i++) status = add_named(n, &batch[i], error);
  return status;
}

static xt_status add_pair(naming *n, ERL_NIF_TERM key, ERL_NIF_TERM value, xt_error *error) {
  named_tensor *named = &n->batch[n->count++];
  named->key = key;
  named->value = value;
  prefetch_term(key, LINE);
  prefetch_term(value, 2 * LINE);
  return n->count == BATCH ? add_batch(n, error) : XT_STATUS_ok;
}

static xt_status add_map(naming *n, ERL_NIF_TERM map, xt_error *error) {
  ErlNifMapIterator at;
  ERL_NIF_TERM key, value;
  xt_status status = XT_STATUS_ok;
  if (!enif_map_iterator_create(n->env, map, &at, ERL_NIF_MAP_ITERATOR_FIRST)) return xt_save_job_no_memory(error);
  while (status == XT_STATUS_ok && n->valid && enif_map_iterator_get_pair(n->env, &at, &key, &value)) {
    status = add_pair(n, key, value, error);
    enif_map_iterator_next(n->env, &at);
  }
  enif_map_iterator_destroy(n->env, &at);
  return status;
}

static xt_status add_list(naming *n, ERL_NIF_TERM list, xt_error *error) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  int arity;
  xt_status status = XT_STATUS_ok;
  while (status == XT_STATUS_ok && n->valid && enif_get_list_cell(n->env, list, &head, &list)) {
    n->valid = enif_get_tuple(n->env, head, &arity, &pair) && arity == 2;
    if (n->valid) status = add_pair(n, pair[0], pair[1], error);
  }
  n->valid = n->valid && (status != XT_STATUS_ok || enif_is_empty_list(n->env, list));
  return status;
}

/* Plans %{name => tensor} or [{name, tensor}]. Sets *valid to false if the term is something else. */
static xt_status plan_named(ErlNifEnv *env, ERL_NIF_TERM term, bool duplicate, xt_save_plan *plan, bool *valid,
                            xt_error *error) {
  size_t size;
  unsigned length;
  bool is_map = enif_get_map_size(env, term, &size);
  *valid = is_map || enif_get_list_length(env, term, &length);
  if (!*valid) return XT_STATUS_ok;
  if (!xt_save_plan_reserve(plan, is_map ? size : length)) return xt_save_job_no_memory(error);
  naming n = {.env = env, .plan = plan, .valid = true};
  xt_status status = (is_map ? add_map : add_list)(&n, term, error);
  if (status == XT_STATUS_ok && n.valid) status = add_batch(&n, error);
  *valid = n.valid;
  return status == XT_STATUS_ok && n.valid ? xt_save_plan_finish_named(plan, duplicate, error) : status;
}

/* saver_begin(term, format, root directory, {compact?, duplicate?}, [{metadata's key, value}])
 *   :: {:ok, {saver, payload bytes} | nil, 0} | {:error, e}
 *
 * For safetensors, npy and npz the term is a map of names and tensors, or a list of pairs; nil if it is not, or if a
 * name is not a string. A tensor may be a %Cast{}. */
ERL_NIF_TERM xt_nif_saver_begin(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifBinary root;
  xt_error error;
  bool compact, duplicate, valid = true;
  const xt_format_writer *format = get_format(argv[1]);
  (void)argc;
  if (!format || !enif_inspect_binary(env, argv[2], &root) || !get_flags(env, argv[3], &compact, &duplicate))
    return enif_make_badarg(env);
  xt_saver_resource *resource = enif_alloc_resource(xt_saver_type, sizeof *resource);
  *resource = (xt_saver_resource){.job = NULL};
  xt_save_job *job = resource->job = new_job(format, &root, compact);
  ERL_NIF_TERM term = enif_make_resource(env, resource);
  enif_release_resource(resource);
  if (!job || !job->plan.root) return xt_make_error(env, (xt_save_job_no_memory(&error), &error));
  if (!get_metadata(env, argv[4], &job->plan)) return enif_make_badarg(env);
  xt_status status = format->refuses ? plan_named(env, argv[0], duplicate, &job->plan, &valid, &error)
                                     : plan_object(env, argv[0], &job->plan, &error);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  if (!valid) return xt_make_ok(env, xt_am_nil);
  xt_saver_begin(&job->saver);
  return xt_make_ok(env, enif_make_tuple2(env, term, enif_make_uint64(env, job->saver.total)));
}

/* ---- To a file ---- */

static void close_file(xt_save_job *job) {
  xt_atomic_file_close(&job->file);
  job->file_open = false;
}

/* saver_open(saver, path, fsync?) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_saver_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_saver_resource *resource;
  char path[XT_PATH_SIZE];
  xt_error error;
  (void)argc;
  if (!xt_get_saver(env, argv[0], &resource) || !xt_get_path(env, argv[1], path)) return enif_make_badarg(env);
  if (xt_saver_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_save_job *job = resource->job;
  bool first = !job->file_open;
  xt_status status = XT_STATUS_ok;
  if (first) {
    job->sync = argv[2] == xt_am_true;
    job->file_open = true;
    status = xt_atomic_file_open(&job->file, path, &error);
    if (status != XT_STATUS_ok) close_file(job);
  }
  xt_busy_leave(&resource->busy);
  return first ? xt_make_result(env, status, xt_am_ok, &error) : enif_make_badarg(env);
}

typedef struct {
  xt_atomic_file *file;
  ErlNifEnv *env;
} file_sink;

static xt_status write_file(void *context, const void *data, size_t size, xt_error *error) {
  return xt_atomic_file_write(((file_sink *)context)->file, data, size, error);
}

static bool is_caller_dead(void *context) { return !enif_is_current_process_alive(((file_sink *)context)->env); }

/* Writes about `budget` bytes. The last step commits the file. */
static xt_status step(ErlNifEnv *env, xt_save_job *job, uint64_t budget, bool *finished, xt_error *error) {
  file_sink context = {&job->file, env};
  xt_sink sink = {.write = write_file, .stop = is_caller_dead, .context = &context};
  xt_status status = xt_saver_step(&job->saver, &sink, budget, finished, error);
  if (status == XT_STATUS_ok && *finished) status = xt_atomic_file_commit(&job->file, job->sync, error);
  if (*finished || (status != XT_STATUS_ok && !error->collect)) close_file(job);
  return status;
}

/* Frees the job before the caller's garbage collection frees the saver: the next save uses its memory. */
static void end_job(xt_saver_resource *resource) {
  xt_save_job_drop(resource->job);
  resource->job = NULL;
}

/* saver_step(saver, bytes) :: {:ok, {:more, bytes done} | :done, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_saver_step(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_saver_resource *resource;
  ErlNifUInt64 budget;
  xt_error error;
  bool finished = false;
  (void)argc;
  if (!xt_get_saver(env, argv[0], &resource) || !enif_get_uint64(env, argv[1], &budget)) return enif_make_badarg(env);
  if (xt_saver_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_save_job *job = resource->job;
  bool open = job->file_open;
  xt_status status = open ? step(env, job, budget, &finished, &error) : XT_STATUS_ok;
  uint64_t done = job->saver.written;
  if (open && !job->file_open) end_job(resource);
  xt_busy_leave(&resource->busy);
  if (!open) return enif_make_badarg(env);
  ERL_NIF_TERM more = enif_make_tuple2(env, xt_am_more, enif_make_uint64(env, done));
  return xt_make_result(env, status, finished ? xt_am_done : more, &error);
}
