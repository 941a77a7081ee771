/* Loads checkpoints that arrive in chunks (ExTorch.Streaming.Loader).
 *
 * Only one process at a time can use a loader, between loader_claim and loader_release. Each release increments a
 * number. It identifies the current state of the loader, so feeding an old one is an error.
 *
 * When loading has ended, or when the process that has claimed the loader dies, everything that the loader holds is
 * freed at once: another process may keep the resource alive for long. */
#include "nif/loader.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory/memory.h"
#include "core/os/thread.h"
#include "nif/materialize.h"
#include "nif/table.h"
#include "nif/tensor.h"

enum { BRIEF_PERCENT = 20 };

typedef struct {
  xt_mutex lock; /* protects the fields below */
  bool claimed;
  ErlNifPid owner;
  ErlNifMonitor monitor; /* of the owner */
  bool inside;           /* a call of the owner is using the loader */
  bool abandoned;        /* the owner has died during that call */
  uint64_t number;
  xt_loader *loader; /* NULL once loading has ended */
  size_t resume;     /* bytes of the current chunk that were used by earlier calls */
} loader_resource;

static void free_loader(xt_reapable *self) {
  xt_loader *loader = (xt_loader *)self;
  xt_push_free(&loader->push);
  atomic_fetch_or(&loader->checkpoint->state, 1); /* closes it; the last call that leaves it frees it */
  xt_checkpoint_leave(loader->checkpoint);
  enif_release_resource(loader->checkpoint);
  free(loader->missing);
  free(loader->first);
  free(loader->waiting);
  free(loader->users);
  free(loader->counted);
  xt_memory_discharge(loader->charged);
  free(loader);
}

/* Unlocks the resource and frees what it holds if `ended`. */
static void unlock(loader_resource *resource, bool ended) {
  xt_loader *discarded = ended ? resource->loader : NULL;
  if (ended) resource->loader = NULL;
  xt_mutex_unlock(&resource->lock);
  if (discarded) xt_reaper_push(&discarded->reapable);
}

static void owner_died(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor) {
  loader_resource *resource = object;
  (void)env;
  xt_mutex_lock(&resource->lock);
  bool owned = resource->claimed && !enif_compare_pids(pid, &resource->owner) &&
               !enif_compare_monitors(monitor, &resource->monitor);
  resource->abandoned = owned;
  unlock(resource, owned && !resource->inside);
}

static void destroy_loader(ErlNifEnv *env, void *object) {
  loader_resource *resource = object;
  (void)env;
  if (resource->loader) xt_reaper_push(&resource->loader->reapable);
  xt_mutex_destroy(&resource->lock);
}

const ErlNifResourceTypeInit xt_loader_callbacks = {.dtor = destroy_loader, .down = owner_died};

/* loader_new(options, spool_bytes) :: {:ok, {loader, checkpoint}, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_loader_new(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 spool_bytes;
  ERL_NIF_TERM checkpoint;
  xt_error error;
  (void)argc;
  if (!enif_get_uint64(env, argv[1], &spool_bytes)) return enif_make_badarg(env);
  xt_loader *loader = calloc(1, sizeof *loader);
  if (!loader) return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while creating a loader");
  xt_status status = xt_checkpoint_for_push(env, argv[0], &loader->checkpoint, &checkpoint, &error);
  if (status != XT_STATUS_ok) {
    free(loader);
    return status == XT_STATUS_bad_argument ? enif_make_badarg(env) : xt_make_error(env, &error);
  }
  loader->reapable.run = free_loader;
  xt_push_begin(&loader->push, &loader->checkpoint->handle->checkpoint, spool_bytes);
  loader_resource *resource = enif_alloc_resource(xt_loader_type, sizeof *resource);
  memset(resource, 0, sizeof *resource);
  xt_mutex_init(&resource->lock);
  resource->loader = loader;
  ERL_NIF_TERM term = enif_make_resource(env, resource);
  enif_release_resource(resource);
  return xt_make_ok(env, enif_make_tuple2(env, term, checkpoint));
}

/* ---- Claim and release ---- */

static xt_status claim(ErlNifEnv *env, loader_resource *resource, uint64_t number, xt_error *error) {
  if (resource->claimed && enif_is_process_alive(env, &resource->owner))
    return xt_error_set(error, XT_STATUS_busy, "another process is feeding this loader");
  if (resource->claimed || !resource->loader)
    return xt_error_set(error, XT_STATUS_stale,
                        "this loader has finished or failed; create another one with ExTorch.Streaming.loader/1");
  if (number != resource->number)
    return xt_error_set(error, XT_STATUS_stale,
                        "this loader was already fed; continue with the one that feed/2 returned");
  enif_self(env, &resource->owner);
  if (enif_monitor_process(env, resource, &resource->owner, &resource->monitor))
    return xt_error_set(error, XT_STATUS_stopping, "the calling process has exited");
  resource->claimed = true;
  resource->resume = 0;
  return XT_STATUS_ok;
}

/* loader_claim(loader, number) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_loader_claim(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  ErlNifUInt64 number;
  xt_error error;
  (void)argc;
  if (!enif_get_resource(env, argv[0], xt_loader_type, (void **)&resource) || !enif_get_uint64(env, argv[1], &number))
    return enif_make_badarg(env);
  xt_mutex_lock(&resource->lock);
  xt_status status = claim(env, resource, number, &error);
  xt_mutex_unlock(&resource->lock);
  return xt_make_result(env, status, xt_am_ok, &error);
}

/* Decodes a loader that the calling process has claimed. It stays valid until `leave`. */
static bool enter(ErlNifEnv *env, ERL_NIF_TERM term, loader_resource **out) {
  ErlNifPid self;
  if (!enif_get_resource(env, term, xt_loader_type, (void **)out)) return false;
  enif_self(env, &self);
  xt_mutex_lock(&(*out)->lock);
  bool mine = (*out)->claimed && !enif_compare_pids(&self, &(*out)->owner) && (*out)->loader;
  if (mine) (*out)->inside = true;
  xt_mutex_unlock(&(*out)->lock);
  return mine;
}

/* Returns the result, so that a call can end with `return leave(…)`. */
static ERL_NIF_TERM leave(loader_resource *resource, ERL_NIF_TERM result) {
  xt_mutex_lock(&resource->lock);
  resource->inside = false;
  unlock(resource, resource->abandoned);
  return result;
}

/* loader_release(loader, ended?) :: number     the number to pass to the next loader_claim
 *
 * If loading has ended, everything that the loader holds is freed, and its checkpoint is closed. */
ERL_NIF_TERM xt_nif_loader_release(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  bool ended;
  (void)argc;
  if (!xt_get_bool(env, argv[1], &ended) || !enter(env, argv[0], &resource)) return enif_make_badarg(env);
  enif_demonitor_process(env, resource, &resource->monitor);
  xt_mutex_lock(&resource->lock);
  resource->claimed = resource->inside = false;
  uint64_t number = ++resource->number;
  unlock(resource, ended || resource->abandoned);
  return enif_make_uint64(env, number);
}

/* ---- Selection ---- */

/* Decodes a list of indices, or :all. */
static bool get_selected(ErlNifEnv *env, ERL_NIF_TERM term, bool *selected, size_t count) {
  ERL_NIF_TERM head;
  ErlNifUInt64 i;
  if (term == xt_am_all) {
    memset(selected, true, count);
    return true;
  }
  while (enif_get_list_cell(env, term, &head, &term)) {
    if (!enif_get_uint64(env, head, &i) || i >= count) return false;
    selected[i] = true;
  }
  return enif_is_empty_list(env, term);
}

static uint64_t add_saturated(uint64_t a, uint64_t b) { return b > INT64_MAX - a ? INT64_MAX : a + b; }

/* {bytes to receive, bytes of all tensors} */
static ERL_NIF_TERM make_sizes(ErlNifEnv *env, const xt_loader *loader, const bool *selected) {
  const xt_checkpoint *c = loader->push.checkpoint;
  uint64_t to_receive = 0, tensors = 0;
  for (size_t i = 0; i < c->index.count; i++)
    if (selected[i]) tensors = add_saturated(tensors, (uint64_t)xt_tensor_desc_bytes(c->index.entries[i].tensor));
  for (size_t i = 0; i < loader->push.storages; i++)
    if (loader->push.wanted[i] && !c->rebuild.storages[i].data)
      to_receive = add_saturated(to_receive, c->rebuild.storages[i].bytes);
  return enif_make_tuple2(env, enif_make_uint64(env, to_receive), enif_make_uint64(env, tensors));
}

static ERL_NIF_TERM select_entries(ErlNifEnv *env, xt_loader *loader, ERL_NIF_TERM entries) {
  xt_error error;
  if (!loader->push.regions || loader->missing) return enif_make_badarg(env);
  size_t count = loader->push.checkpoint->index.count;
  bool *selected = calloc(count + 1, sizeof *selected);
  if (!selected) return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while loading tensors");
  if (!get_selected(env, entries, selected, count)) {
    free(selected);
    return enif_make_badarg(env);
  }
  xt_status status = xt_loader_select(loader, selected, &error);
  ERL_NIF_TERM sizes = status == XT_STATUS_ok ? make_sizes(env, loader, selected) : xt_am_nil;
  free(selected);
  return xt_make_result(env, status, sizes, &error);
}

/* loader_select(loader, [entry's index] | :all) :: {:ok, {bytes to receive, bytes of all tensors}, 0} | {:error, e}
 *
 * Called once, after loader_feed has returned :described. */
ERL_NIF_TERM xt_nif_loader_select(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  (void)argc;
  if (!enter(env, argv[0], &resource)) return enif_make_badarg(env);
  return leave(resource, select_entries(env, resource->loader, argv[1]));
}

/* ---- Feeding ---- */

typedef struct {
  xt_push_event event;
  bool paused; /* the chunk is not used up */
} feed_result;

/* Whether the next steps of the parser take microseconds. The byte order may be known only after the object, and a
 * storage whose bytes must be swapped takes longer. */
static bool is_light(const xt_loader *loader) {
  const bool host_is_big_endian = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
  return loader->push.light && loader->push.checkpoint->big_endian == host_is_big_endian;
}

/* Creates the tensors of the storages that the last event completed. */
static xt_status handle_event(xt_loader *loader, xt_push_event event, xt_ready_tensors *out, xt_error *error) {
  xt_push *push = &loader->push;
  xt_status status = XT_STATUS_ok;
  if (event == XT_PUSH_STORAGE && push->wanted[push->storage])
    status = xt_loader_storage_complete(loader, push->storage, out, error);
  if (event == XT_PUSH_DESCRIBED) loader->checkpoint->handle->open = true;
  for (size_t i = 0; event == XT_PUSH_DONE && i < push->storages && status == XT_STATUS_ok; i++)
    if (push->regions[i]) status = xt_loader_storage_complete(loader, i, out, error);
  return status;
}

/* Feeds the chunk until it is used up, the limits are reached, or the caller must react to an event. */
static xt_status feed(loader_resource *resource, const ErlNifBinary *chunk, const xt_loader_limits *limits,
                      xt_ready_tensors *out, feed_result *result, xt_error *error) {
  xt_loader *loader = resource->loader;
  size_t start = resource->resume, used = 0;
  xt_status status = XT_STATUS_ok;
  if (loader->missing && !loader->next_immediate) status = xt_loader_make_immediate(loader, out, error);
  while (status == XT_STATUS_ok) {
    size_t size = chunk->size - resource->resume;
    if (size > limits->bytes) size = limits->bytes;
    status = xt_push_feed(&loader->push, chunk->data + resource->resume, size, &used, &result->event, error);
    resource->resume += used;
    if (status == XT_STATUS_ok) status = handle_event(loader, result->event, out, error);
    if (status != XT_STATUS_ok || result->event == XT_PUSH_DESCRIBED || result->event == XT_PUSH_DONE) break;
    result->paused = resource->resume < chunk->size;
    bool enough = resource->resume - start >= limits->bytes || out->count >= limits->tensors ||
                  (limits->brief && !is_light(loader));
    if (enough && !limits->brief && !enif_is_current_process_alive(out->env))
      return xt_error_set(error, XT_STATUS_stopping, "the calling process has exited");
    if (enough || (result->event == XT_PUSH_MORE && !result->paused)) break;
  }
  return status;
}

static void release_tensors(const xt_ready_tensors *out) {
  ERL_NIF_TERM pair, list = out->list;
  const ERL_NIF_TERM *parts;
  int arity;
  while (enif_get_list_cell(out->env, list, &pair, &list))
    if (enif_get_tuple(out->env, pair, &arity, &parts)) xt_release_terms(out->env, &parts[1], 1);
}

static bool caller_is_dead(void *env) { return !enif_is_current_process_alive(env); }

static ERL_NIF_TERM feed_chunk(ErlNifEnv *env, loader_resource *resource, const ErlNifBinary *chunk,
                               const xt_loader_limits *limits) {
  xt_push *push = &resource->loader->push;
  push->stop = caller_is_dead;
  push->context = env;
  xt_error error;
  xt_ready_tensors out = {env, enif_make_list(env, 0), 0};
  feed_result result = {XT_PUSH_MORE, false};
  xt_status status = feed(resource, chunk, limits, &out, &result, &error);
  /* tensors that were created before the budget was exhausted must not be lost */
  bool retry = status != XT_STATUS_ok && error.collect && out.count;
  if (status != XT_STATUS_ok && !retry) {
    release_tensors(&out);
    return xt_make_error(env, &error);
  }
  ERL_NIF_TERM received = enif_make_uint64(env, push->received);
  ERL_NIF_TERM missing = enif_make_uint64(env, xt_push_missing(push));
  if (retry || (result.paused && result.event == XT_PUSH_MORE) || result.event == XT_PUSH_STORAGE)
    return xt_make_ok(env, enif_make_tuple4(env, xt_am_again, received, missing, out.list));
  if (result.event == XT_PUSH_DESCRIBED) return xt_make_ok(env, xt_am_described);
  ERL_NIF_TERM used = enif_make_uint64(env, resource->resume);
  if (result.event == XT_PUSH_DONE) return xt_make_ok(env, enif_make_tuple3(env, xt_am_done, used, out.list));
  resource->resume = 0;
  return xt_make_ok(env, enif_make_tuple4(env, xt_am_more, received, missing, out.list));
}

/* loader_feed(loader, binary)
 *   :: {:ok, :described | {:again | :more, bytes received, bytes missing, ready} | {:done, bytes used, ready}, bytes}
 *    | {:error, e}
 *
 * ready :: [{entry's index, tensor}]. The same binary must be passed again until :more or :done; the loader keeps
 * count of the bytes that it has used. */
ERL_NIF_TERM xt_nif_loader_feed(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  ErlNifBinary chunk;
  if (!enif_inspect_binary(env, argv[1], &chunk) || !enter(env, argv[0], &resource)) return enif_make_badarg(env);
  const xt_loader *loader = resource->loader;
  if (resource->resume > chunk.size || (loader->push.regions && !loader->missing))
    return leave(resource, enif_make_badarg(env));
  bool on_dirty = enif_thread_type() != ERL_NIF_THR_NORMAL_SCHEDULER;
  bool is_brief = loader->plain && loader->next_immediate && is_light(loader);
  if (!on_dirty && !is_brief)
    return leave(resource, enif_schedule_nif(env, "loader_feed", XT_DIRTY_CPU, xt_nif_loader_feed, argc, argv));
  if (!on_dirty) enif_consume_timeslice(env, BRIEF_PERCENT);
  return leave(resource,
               feed_chunk(env, resource, &chunk, on_dirty ? &xt_loader_dirty_limits : &xt_loader_brief_limits));
}

/* loader_ended(loader) :: {:error, e}     for a stream that ended early; the error contains the number of bytes
 * received */
ERL_NIF_TERM xt_nif_loader_ended(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  xt_error error;
  (void)argc;
  if (!enter(env, argv[0], &resource)) return enif_make_badarg(env);
  xt_push_end(&resource->loader->push, &error);
  return leave(resource, xt_make_error(env, &error));
}
