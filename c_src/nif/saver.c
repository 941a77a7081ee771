/* Saving: a term becomes a plan, and the plan is written in steps. */
#include <stdlib.h>
#include <string.h>

#include "core/formats/legacy.h"
#include "core/formats/safetensors.h"
#include "core/formats/torch_stream.h"
#include "core/formats/zip.h"
#include "core/memory/memory.h"
#include "core/os/atomic_file.h"
#include "core/os/mapping.h"
#include "nif/checkpoint.h"
#include "nif/pickle_term.h"
#include "nif/saver.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

static ErlNifResourceType *saver_type;

/* All that a save holds; the reaper frees it. */
typedef struct {
  xt_reapable reapable; /* first */
  atomic_int references;
  xt_save_tensors tensors;
  xt_pickler pickle;
  xt_saver saver;
  xt_atomic_file file;
  char *root;
  xt_named_tensor *names; /* safetensors */
  xt_buffer texts, metadata;
  xt_tensor *staged; /* what was fetched */
  xt_region *shared; /* the same, once binaries see it */
  bool sync;
} save_job;

typedef struct {
  atomic_flag busy;
  save_job *save_job;
} saver_resource;

static void free_save_job(xt_reapable *self) {
  save_job *s = (save_job *)self;
  xt_saver_free(&s->saver);
  xt_region_drop(s->shared);
  xt_atomic_file_close(&s->file);
  xt_save_free(&s->tensors);
  xt_pickler_free(&s->pickle);
  xt_buffer_free(&s->texts);
  xt_buffer_free(&s->metadata);
  free(s->names);
  free(s->root);
  free(s);
}

static void keep_save_job(void *owner) { atomic_fetch_add(&((save_job *)owner)->references, 1); }

static void drop_save_job(void *owner) {
  save_job *s = owner;
  if (atomic_fetch_sub(&s->references, 1) == 1) xt_reaper_push(&s->reapable);
}

static void saver_destroyed(ErlNifEnv *env, void *object) {
  saver_resource *resource = object;
  (void)env;
  if (!resource->save_job) return;
  xt_saver_stop(&resource->save_job->saver);
  drop_save_job(resource->save_job);
}

bool xt_saver_register(ErlNifEnv *env) {
  ErlNifResourceTypeInit init = {.dtor = saver_destroyed};
  saver_type = enif_open_resource_type_x(env, "extorch_saver", &init, ERL_NIF_RT_CREATE, NULL);
  return saver_type != NULL;
}

/* ---- The plan ---- */

static xt_status fetch(void *context, size_t payload, const uint8_t **data, xt_error *error) {
  save_job *s = context;
  return xt_save_fetch(&s->tensors, payload, &s->staged, data, error);
}

static void fetched_done(void *context, size_t payload) {
  save_job *s = context;
  (void)payload;
  if (s->staged) xt_tensor_drop(s->staged);
  s->staged = NULL;
}

static xt_status no_memory(xt_error *error) { return xt_error_set(error, XT_STATUS_no_memory, "no memory to save"); }

static xt_status plan_pickle(ErlNifEnv *env, save_job *s, ERL_NIF_TERM term, xt_error *error) {
  bool legacy = s->saver.format == &xt_legacy_write;
  xt_pickle_template draft = {0};
  xt_status status = xt_pickle_term(env, term, &s->tensors, &draft, error);
  if (status == XT_STATUS_ok) status = xt_save_plan(&s->tensors, error);
  if (status == XT_STATUS_ok) status = xt_pickle_template_fill(&draft, &s->tensors, legacy, &s->pickle, error);
  xt_pickle_template_free(&draft);
  if (status == XT_STATUS_ok && legacy) status = xt_save_sort(&s->tensors, error);
  s->saver.payloads = s->tensors.payloads;
  s->saver.count = s->tensors.payload_count;
  s->saver.pickle = s->pickle.out.data;
  s->saver.pickle_size = s->pickle.out.size;
  s->saver.root = s->root;
  return status;
}

/* [{name, tensor}], sorted as the format likes it: each tensor is written by itself. */
static xt_status plan_named(ErlNifEnv *env, save_job *s, ERL_NIF_TERM list, xt_error *error) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  int arity;
  unsigned count;
  size_t i = 0;
  ErlNifBinary name;
  xt_tensor_resource *resource;
  xt_tensor *handle;
  xt_save_tensor tensor;
  enif_get_list_length(env, list, &count);
  s->names = calloc(count + 1, sizeof *s->names);
  s->tensors.payloads = calloc(count + 1, sizeof *s->tensors.payloads);
  s->tensors.payload_view = calloc(count + 1, sizeof *s->tensors.payload_view);
  if (!s->names || !s->tensors.payloads || !s->tensors.payload_view) return no_memory(error);
  for (ERL_NIF_TERM rest = list; enif_get_list_cell(env, rest, &head, &rest); i++) {
    if (!enif_get_tuple(env, head, &arity, &pair) || arity != 2 || !enif_inspect_binary(env, pair[0], &name) ||
        !xt_get_tensor(env, pair[1], &resource))
      return xt_error_set(error, XT_STATUS_bad_argument, "safetensors holds names and tensors");
    xt_status status = xt_tensor_take(resource, &handle, error);
    if (status == XT_STATUS_ok) status = xt_save_add(&s->tensors, handle, &tensor, error);
    if (status != XT_STATUS_ok) return status;
    const xt_tensor_info *info = &handle->info;
    if (tensor.kind != XT_SAVE_STRIDED || !xt_safetensors_dtype(info->dtype))
      return xt_error_set(
          error, XT_STATUS_unsupported, "%.*s: safetensors has no %s; use another format, or convert it first",
          (int)(name.size < 200 ? name.size : 200), name.data,
          tensor.kind == XT_SAVE_STRIDED ? xt_dtype_get(info->dtype)->name : "sparse, quantized or meta tensors");
    size_t at = s->texts.size;
    xt_buffer_put(&s->texts, name.data, name.size);
    s->names[i] = (xt_named_tensor){(const char *)at, name.size, info->dtype, info->ndim, info->sizes};
    xt_payload *payload = &s->tensors.payloads[i];
    payload->dtype = info->dtype;
    payload->numel = info->numel;
    payload->bytes = (uint64_t)info->numel * xt_dtype_get(info->dtype)->size;
    bool as_it_is = info->plain && info->contiguous && info->device.type == XT_DEVICE_CPU;
    payload->data = as_it_is && payload->bytes ? info->data : NULL;
    s->tensors.payload_view[i] = i;
  }
  if (s->texts.failed) return no_memory(error);
  for (size_t n = 0; n < i; n++) s->names[n].name = (const char *)s->texts.data + (uintptr_t)s->names[n].name;
  s->saver.payloads = s->tensors.payloads;
  s->saver.count = s->tensors.payload_count = i;
  s->saver.tensors = s->names;
  s->saver.metadata = &s->metadata;
  return XT_STATUS_ok;
}

typedef struct {
  uintptr_t from, to;
  size_t index;
} range;

static int by_address(const void *a, const void *b) {
  const range *x = a, *y = b;
  return x->from < y->from ? -1 : x->from > y->from;
}

/* A reader would not know that two tensors were one. */
static xt_status check_shared(const save_job *s, xt_error *error) {
  size_t count = 0;
  range *ranges = calloc(s->saver.count + 1, sizeof *ranges);
  xt_status status = XT_STATUS_ok;
  if (!ranges) return no_memory(error);
  for (size_t i = 0; i < s->saver.count; i++) {
    const xt_tensor_info *info = &s->tensors.views[i].handle->info;
    if (info->plain && info->span)
      ranges[count++] = (range){(uintptr_t)info->data, (uintptr_t)info->data + info->span, i};
  }
  qsort(ranges, count, sizeof *ranges, by_address);
  for (size_t i = 1; i < count && status == XT_STATUS_ok; i++) {
    const xt_named_tensor *a = &s->names[ranges[i - 1].index], *b = &s->names[ranges[i].index];
    if (ranges[i].from < ranges[i - 1].to)
      status = xt_error_set(error, XT_STATUS_bad_argument,
                            "%.*s and %.*s share memory, which safetensors cannot say; save one of them, or write the "
                            "bytes twice with duplicate: true",
                            (int)(a->name_size < 200 ? a->name_size : 200), a->name,
                            (int)(b->name_size < 200 ? b->name_size : 200), b->name);
    if (ranges[i].to < ranges[i - 1].to) ranges[i].to = ranges[i - 1].to, ranges[i].index = ranges[i - 1].index;
  }
  free(ranges);
  return status;
}

static bool get_metadata(ErlNifEnv *env, ERL_NIF_TERM list, xt_buffer *out) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  int arity;
  ErlNifBinary text;
  while (enif_get_list_cell(env, list, &head, &list)) {
    if (!enif_get_tuple(env, head, &arity, &pair) || arity != 2) return false;
    for (int i = 0; i < 2; i++) {
      if (!enif_inspect_binary(env, pair[i], &text)) return false;
      xt_buffer_put(out, &text.size, sizeof text.size);
      xt_buffer_put(out, text.data, text.size);
    }
  }
  return enif_is_empty_list(env, list);
}

static const xt_format_writer *get_layout(ERL_NIF_TERM format) {
  if (format == xt_am_zip) return &xt_zip_write;
  if (format == xt_am_legacy) return &xt_legacy_write;
  if (format == xt_am_streaming) return &xt_torch_stream_write;
  return format == xt_am_safetensors ? &xt_safetensors_write : NULL;
}

/* saver_begin(term, format, root folder, {compact?, duplicate?}, [{metadata's key, value}])
 *   :: {:ok, {saving, payload bytes}, 0} | {:error, e}
 *
 * For safetensors the term is a list of {name, tensor}. */
ERL_NIF_TERM xt_nif_saver_begin(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifBinary root;
  xt_error error;
  bool compact, duplicate;
  const ERL_NIF_TERM *flags;
  int arity;
  const xt_format_writer *layout = get_layout(argv[1]);
  (void)argc;
  if (!layout || !enif_inspect_binary(env, argv[2], &root) || !enif_get_tuple(env, argv[3], &arity, &flags) ||
      arity != 2 || !xt_get_bool(env, flags[0], &compact) || !xt_get_bool(env, flags[1], &duplicate) ||
      !enif_is_list(env, argv[4]))
    return enif_make_badarg(env);
  saver_resource *resource = enif_alloc_resource(saver_type, sizeof *resource);
  atomic_flag_clear(&resource->busy);
  save_job *s = resource->save_job = calloc(1, sizeof *s);
  ERL_NIF_TERM term = enif_make_resource(env, resource);
  enif_release_resource(resource);
  if (!s) return xt_make_error(env, (no_memory(&error), &error));
  s->reapable.run = free_save_job;
  atomic_init(&s->references, 1);
  s->file.fd = s->file.folder = -1;
  s->tensors.compact = compact;
  s->saver.format = layout;
  s->saver.fetch = fetch;
  s->saver.done = fetched_done;
  s->saver.context = s;
  s->saver.keeper = (xt_owner){keep_save_job, drop_save_job, s};
  s->root = strndup((const char *)root.data, root.size);
  xt_status status = s->root ? XT_STATUS_ok : no_memory(&error);
  if (status == XT_STATUS_ok && !get_metadata(env, argv[4], &s->metadata)) return enif_make_badarg(env);
  if (status == XT_STATUS_ok && s->metadata.failed) status = no_memory(&error);
  if (status == XT_STATUS_ok)
    status =
        layout == &xt_safetensors_write ? plan_named(env, s, argv[0], &error) : plan_pickle(env, s, argv[0], &error);
  if (status == XT_STATUS_ok && layout == &xt_safetensors_write && !duplicate) status = check_shared(s, &error);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_saver_begin(&s->saver);
  return xt_make_ok(env, enif_make_tuple2(env, term, enif_make_uint64(env, s->saver.total)));
}

/* ---- Into a file ---- */

static bool get_saving(ErlNifEnv *env, ERL_NIF_TERM term, saver_resource **out) {
  return enif_get_resource(env, term, saver_type, (void **)out) && (*out)->save_job;
}

static ERL_NIF_TERM busy(ErlNifEnv *env) {
  xt_error error;
  xt_error_set(&error, XT_STATUS_busy, "another process is going on with this save");
  return xt_make_error(env, &error);
}

/* saver_open(saving, path, fsync?) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_saver_open(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  saver_resource *resource;
  ErlNifBinary text;
  char path[4096];
  xt_error error;
  (void)argc;
  if (!get_saving(env, argv[0], &resource) || !enif_inspect_binary(env, argv[1], &text) || text.size >= sizeof path ||
      memchr(text.data, 0, text.size))
    return enif_make_badarg(env);
  memcpy(path, text.data, text.size);
  path[text.size] = 0;
  if (atomic_flag_test_and_set(&resource->busy)) return busy(env);
  if (resource->save_job->file.fd >= 0) {
    atomic_flag_clear(&resource->busy);
    return enif_make_badarg(env);
  }
  resource->save_job->sync = argv[2] == xt_am_true;
  xt_status status = xt_atomic_file_open(&resource->save_job->file, path, &error);
  if (status != XT_STATUS_ok) xt_atomic_file_close(&resource->save_job->file);
  atomic_flag_clear(&resource->busy);
  return status == XT_STATUS_ok ? xt_make_ok(env, xt_am_ok) : xt_make_error(env, &error);
}

typedef struct {
  save_job *save_job;
  ErlNifEnv *env;
  uint64_t since; /* bytes since the caller was looked for */
} sink_context;

static xt_status write_file(void *context, const void *data, size_t size, xt_error *error) {
  sink_context *c = context;
  c->since += size;
  if (c->since > 4 << 20) {
    c->since = 0;
    if (!enif_is_current_process_alive(c->env)) return xt_error_set(error, XT_STATUS_stopping, "the caller is gone");
  }
  return xt_atomic_file_write(&c->save_job->file, data, size, error);
}

/* Zeros stand for the pages that a mapped file lost: better no file than that. */
static xt_status check_memory(const save_job *s, xt_error *error) {
  if (!atomic_load(&xt_memory_live.mapped)) return XT_STATUS_ok;
  for (size_t i = 0; i < s->saver.count; i++)
    if (s->saver.payloads[i].data && xt_mapping_poisoned(s->saver.payloads[i].data, s->saver.payloads[i].bytes))
      return xt_error_set(error, XT_STATUS_file_changed,
                          "a tensor's mapped file was truncated while it was being saved; the old file is as it was");
  return XT_STATUS_ok;
}

/* saver_step(saving, bytes) :: {:ok, {:more, bytes done} | :done, 0} | {:error, e}     the last step commits */
ERL_NIF_TERM xt_nif_saver_step(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  saver_resource *resource;
  ErlNifUInt64 budget;
  xt_error error;
  bool finished = false;
  (void)argc;
  if (!get_saving(env, argv[0], &resource) || !enif_get_uint64(env, argv[1], &budget)) return enif_make_badarg(env);
  if (atomic_flag_test_and_set(&resource->busy)) return busy(env);
  save_job *s = resource->save_job;
  if (s->file.fd < 0) {
    atomic_flag_clear(&resource->busy);
    return enif_make_badarg(env);
  }
  sink_context context = {s, env, 0};
  xt_sink sink = {.write = write_file, .context = &context};
  xt_status status = xt_saver_step(&s->saver, &sink, budget, &finished, &error);
  if (status == XT_STATUS_ok && finished) status = check_memory(s, &error);
  if (status == XT_STATUS_ok && finished) status = xt_atomic_file_commit(&s->file, s->sync, &error);
  if ((status != XT_STATUS_ok && !error.collect) || finished) xt_atomic_file_close(&s->file);
  uint64_t done = s->saver.written;
  atomic_flag_clear(&resource->busy);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  return xt_make_ok(env, finished ? xt_am_done : enif_make_tuple2(env, xt_am_more, enif_make_uint64(env, done)));
}

/* ---- As terms ---- */

/* The bytes of a step, as binaries: small ones are copied, payloads share the tensors' memory. */
typedef struct {
  saver_resource *resource;
  ErlNifEnv *env;
  ERL_NIF_TERM list; /* the last first */
  size_t payload;    /* of which these bytes were given, and may go on: */
  const uint8_t *from;
  size_t size;
} pieces;

static void release_resource(xt_region *self) { enif_release_resource(self->owner); }
static void release_staged(xt_region *self) { xt_tensor_drop(self->owner); }

/* A binary over a payload keeps the save, and so its tensors; over what was fetched for it, only that. */
static xt_region *region_of(pieces *p) {
  save_job *s = p->resource->save_job;
  if (!s->saver.payloads[p->payload].data) return xt_region_keep(s->shared);
  xt_region *region = xt_region_foreign((void *)p->from, p->size, p->resource, release_resource);
  if (region) enif_keep_resource(p->resource);
  return region;
}

static xt_status put_shared(pieces *p, xt_error *error) {
  if (!p->size) return XT_STATUS_ok;
  xt_region *region = region_of(p);
  if (!region) return no_memory(error);
  p->list = enif_make_list_cell(p->env, xt_make_region_binary(p->env, region, p->from, p->size), p->list);
  p->size = 0;
  return XT_STATUS_ok;
}

static xt_status put_copy(void *context, const void *data, size_t size, xt_error *error) {
  pieces *p = context;
  xt_status status = put_shared(p, error);
  if (status != XT_STATUS_ok) return status;
  ERL_NIF_TERM binary = xt_make_text(p->env, data, size);
  if (binary == xt_am_nil) return no_memory(error);
  p->list = enif_make_list_cell(p->env, binary, p->list);
  return XT_STATUS_ok;
}

/* What was fetched lives as long as a binary sees it. */
static xt_status keep_staged(save_job *s, size_t payload, xt_error *error) {
  if (s->saver.payloads[payload].data || !s->staged) return XT_STATUS_ok;
  xt_region_drop(s->shared);
  s->shared = xt_region_foreign(s->staged->info.data, s->saver.payloads[payload].bytes, s->staged, release_staged);
  if (!s->shared) return no_memory(error);
  s->staged = NULL;
  return XT_STATUS_ok;
}

static xt_status share(void *context, size_t payload, const uint8_t *data, size_t size, xt_error *error) {
  pieces *p = context;
  xt_status status = XT_STATUS_ok;
  if (p->payload != payload || p->from + p->size != data) status = put_shared(p, error);
  if (status == XT_STATUS_ok) status = keep_staged(p->resource->save_job, payload, error);
  if (status != XT_STATUS_ok) return status;
  if (!p->size) p->from = data;
  p->payload = payload;
  p->size += size;
  return status;
}

static ERL_NIF_TERM give_pieces(ErlNifEnv *env, saver_resource *resource, uint64_t budget) {
  save_job *s = resource->save_job;
  xt_error error;
  bool finished = false;
  pieces made = {resource, env, enif_make_list(env, 0), 0, NULL, 0};
  xt_sink sink = {put_copy, share, &made};
  xt_status status = xt_saver_step(&s->saver, &sink, budget, &finished, &error);
  bool again = status != XT_STATUS_ok && error.collect && (made.size || !enif_is_empty_list(env, made.list));
  if (again) status = XT_STATUS_ok; /* what was made must not be lost */
  if (status == XT_STATUS_ok) status = put_shared(&made, &error);
  if (status == XT_STATUS_ok && finished) status = check_memory(s, &error);
  ERL_NIF_TERM done = enif_make_uint64(env, s->saver.written), list = enif_make_list(env, 0);
  atomic_flag_clear(&resource->busy);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  enif_make_reverse_list(env, made.list, &list);
  return xt_make_ok(env, enif_make_tuple3(env, finished ? xt_am_done : xt_am_more, done, list));
}

/* In the middle of a large payload there is nothing to do but a checksum. */
enum { BRIEF_BYTES = 1 << 20, BRIEF_PERCENT = 20 };

/* saver_next(saving, bytes) :: {:ok, {:more | :done, payload bytes so far, iodata}, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_saver_next(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  saver_resource *resource;
  ErlNifUInt64 budget;
  if (!get_saving(env, argv[0], &resource) || !enif_get_uint64(env, argv[1], &budget) ||
      resource->save_job->file.fd >= 0)
    return enif_make_badarg(env);
  if (atomic_flag_test_and_set(&resource->busy)) return busy(env);
  bool on_dirty = enif_thread_type() != ERL_NIF_THR_NORMAL_SCHEDULER;
  const xt_saver *w = &resource->save_job->saver;
  bool from_disk = w->format->crc && atomic_load(&xt_memory_live.mapped); /* a map is read when it is looked at */
  if (!on_dirty && (budget > BRIEF_BYTES || from_disk || !xt_saver_in_payload(w, budget))) {
    atomic_flag_clear(&resource->busy);
    return enif_schedule_nif(env, "saver_next", XT_DIRTY_CPU, xt_nif_saver_next, argc, argv);
  }
  if (!on_dirty) enif_consume_timeslice(env, BRIEF_PERCENT);
  return give_pieces(env, resource, budget);
}
