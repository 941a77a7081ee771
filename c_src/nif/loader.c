/* Loads checkpoints that arrive in chunks (ExTorch.Streaming.Loader).
 *
 *   idle     loader_feed with the current number → claimed by the caller; loader_ended → ended
 *   claimed  loader_feed, loader_select and loader_finish of the owner go on; others get :busy.
 *            A loader_feed that has nothing to hand over, or loader_release → idle, and the number increments, so that
 *            feeding an old state is an error. An error, loader_release(…, true), or the death of the owner → ended
 *   ended    everything that the loader held is freed, also if another process keeps the resource alive for long
 *
 * One loader_feed takes a whole chunk and returns to idle, if the tensors are created at the end (`deferred`) and
 * Elixir does not select tensors or report progress. */
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
  bool monitored; /* the owner is monitored: the claim lasts longer than a call */
  ErlNifMonitor monitor;
  bool inside;    /* a call of the owner is using the loader */
  bool abandoned; /* the owner has died during that call */
  uint64_t number;
  xt_loader *loader; /* NULL once loading has ended */
  bool unpacked;     /* loader_stored was called */
  uint64_t stored;

  /* of the owner */
  bool retries;  /* the last call exceeded the budget; it is repeated with the same arguments */
  size_t resume; /* bytes of the current chunk that were used by earlier calls */
  int64_t taken; /* native bytes that earlier parts of this call have allocated */
  bool selects;  /* Elixir selects tensors: loader_feed returns :described */
  bool reports;  /* Elixir reports progress: loader_feed returns now and then, and does not end the claim */
} loader_resource;

static void free_loader(xt_reapable *self) {
  xt_loader *loader = (xt_loader *)self;
  xt_push_free(&loader->push);
  xt_checkpoint_close(loader->checkpoint); /* the last call that leaves it frees it */
  xt_checkpoint_let_go(loader->checkpoint);
  free(loader->selected);
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
  bool owned = resource->claimed && resource->monitored && !enif_compare_pids(pid, &resource->owner) &&
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

/* loader_new(options, spool_bytes, {deferred?, selects?, reports?}) :: {:ok, {loader, checkpoint}, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_loader_new(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 spool_bytes;
  ERL_NIF_TERM checkpoint;
  const ERL_NIF_TERM *flags;
  bool deferred, selects, reports;
  xt_error error;
  int arity;
  (void)argc;
  if (!enif_get_uint64(env, argv[1], &spool_bytes) || !enif_get_tuple(env, argv[2], &arity, &flags) || arity != 3 ||
      !xt_get_bool(env, flags[0], &deferred) || !xt_get_bool(env, flags[1], &selects) ||
      !xt_get_bool(env, flags[2], &reports))
    return enif_make_badarg(env);
  xt_loader *loader = calloc(1, sizeof *loader);
  if (!loader) return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while creating a loader");
  xt_status status = xt_checkpoint_for_push(env, argv[0], &loader->checkpoint, &checkpoint, &error);
  if (status != XT_STATUS_ok) {
    free(loader);
    return status == XT_STATUS_bad_argument ? enif_make_badarg(env) : xt_make_error(env, &error);
  }
  loader->reapable.run = free_loader;
  loader->deferred = deferred;
  xt_push_begin(&loader->push, &loader->checkpoint->handle->checkpoint, spool_bytes);
  loader_resource *resource = enif_alloc_resource(xt_loader_type, sizeof *resource);
  memset(resource, 0, sizeof *resource);
  xt_mutex_init(&resource->lock);
  resource->loader = loader;
  resource->selects = selects;
  resource->reports = reports;
  ERL_NIF_TERM term = enif_make_resource(env, resource);
  enif_release_resource(resource);
  return xt_make_ok(env, enif_make_tuple2(env, term, checkpoint));
}

/* ---- The claim ---- */

static bool is_owner(ErlNifEnv *env, const loader_resource *resource) {
  ErlNifPid self;
  enif_self(env, &self);
  return resource->claimed && !enif_compare_pids(&self, &resource->owner);
}

static xt_status claim(ErlNifEnv *env, loader_resource *resource, uint64_t number, xt_error *error) {
  if (resource->retries && is_owner(env, resource)) {
    resource->retries = false;
    resource->inside = true;
    return XT_STATUS_ok;
  }
  if (resource->claimed && enif_is_process_alive(env, &resource->owner))
    return xt_error_set(error, XT_STATUS_busy, "another process is feeding this loader");
  if (resource->claimed || !resource->loader)
    return xt_error_set(error, XT_STATUS_stale,
                        "this loader has finished or failed; create another one with ExTorch.Streaming.loader/1");
  if (number != resource->number)
    return xt_error_set(error, XT_STATUS_stale,
                        "this loader was already fed; continue with the one that feed/2 returned");
  enif_self(env, &resource->owner);
  resource->claimed = resource->inside = true;
  resource->monitored = resource->abandoned = false;
  resource->resume = 0;
  resource->taken = 0;
  return XT_STATUS_ok;
}

/* Enters a loader that the caller has claimed. `leave` must follow if this returns true. */
static bool enter_claimed(ErlNifEnv *env, loader_resource *resource) {
  xt_mutex_lock(&resource->lock);
  bool entered = is_owner(env, resource) && resource->loader && !resource->inside;
  if (entered) resource->inside = true;
  xt_mutex_unlock(&resource->lock);
  return entered;
}

/* Enters a loader: claims it with a number, or goes on with nil. Returns false and the result of the call in *out if
 * that is not possible. `leave` must follow. */
static bool enter(ErlNifEnv *env, ERL_NIF_TERM term, ERL_NIF_TERM number, loader_resource **out, ERL_NIF_TERM *result) {
  ErlNifUInt64 n = 0;
  xt_error error;
  bool claims = enif_get_uint64(env, number, &n), entered;
  if (!enif_get_resource(env, term, xt_loader_type, (void **)out) || (!claims && number != xt_am_nil)) {
    *result = enif_make_badarg(env);
    return false;
  }
  if (claims) {
    xt_mutex_lock(&(*out)->lock);
    entered = claim(env, *out, n, &error) == XT_STATUS_ok;
    xt_mutex_unlock(&(*out)->lock);
  } else {
    entered = enter_claimed(env, *out);
  }
  if (!entered) *result = claims ? xt_make_error(env, &error) : enif_make_badarg(env);
  return entered;
}

typedef enum { STAY_CLAIMED, BE_IDLE, HAVE_ENDED } next_state;

/* Ends a call. Returns the result, so that a call can end with `return leave(…)`. If the owner dies later, or has died
 * during the call, everything is freed. */
static ERL_NIF_TERM leave(ErlNifEnv *env, loader_resource *resource, next_state next, ERL_NIF_TERM result) {
  bool dead = false, monitored = resource->monitored;
  if (next != STAY_CLAIMED && monitored) enif_demonitor_process(env, resource, &resource->monitor);
  xt_mutex_lock(&resource->lock);
  if (next != STAY_CLAIMED) dead = !enif_is_current_process_alive(env);
  else if (!monitored) dead = enif_monitor_process(env, resource, &resource->owner, &resource->monitor);
  resource->inside = false;
  resource->claimed = next == STAY_CLAIMED;
  resource->monitored = resource->claimed;
  if (next == BE_IDLE) resource->number++;
  unlock(resource, next == HAVE_ENDED || resource->abandoned || dead);
  return result;
}

/* loader_release(loader, ended?) :: {:ok, number | nil, 0}     ends the claim; the number to pass to the next
 * loader_feed, or nil if the caller has no claim, for example because the loader has ended */
ERL_NIF_TERM xt_nif_loader_release(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  ERL_NIF_TERM result;
  bool ended;
  (void)argc;
  if (!xt_get_bool(env, argv[1], &ended) || !enif_get_resource(env, argv[0], xt_loader_type, (void **)&resource))
    return enif_make_badarg(env);
  if (!enter_claimed(env, resource)) return xt_make_ok(env, xt_am_nil);
  result = xt_make_ok(env, enif_make_uint64(env, resource->number + 1));
  return leave(env, resource, ended ? HAVE_ENDED : BE_IDLE, result);
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

static ERL_NIF_TERM select_entries(ErlNifEnv *env, xt_loader *loader, ERL_NIF_TERM entries) {
  xt_error error;
  uint64_t bytes = 0;
  if (!loader->push.regions || loader->missing) return enif_make_badarg(env);
  size_t count = loader->push.checkpoint->index.count;
  bool *selected = calloc(count + 1, sizeof *selected);
  if (!selected) return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while loading tensors");
  if (!get_selected(env, entries, selected, count)) {
    free(selected);
    return enif_make_badarg(env);
  }
  xt_status status = xt_loader_select(loader, selected, &bytes, &error);
  free(selected);
  return xt_make_result(env, status, enif_make_uint64(env, bytes), &error);
}

/* loader_select(loader, [entry's index] | :all) :: {:ok, bytes to receive, 0} | {:error, e}
 *
 * Called once, after loader_feed has returned :described. */
ERL_NIF_TERM xt_nif_loader_select(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  ERL_NIF_TERM result;
  (void)argc;
  if (!enter(env, argv[0], xt_am_nil, &resource, &result)) return result;
  return leave(env, resource, STAY_CLAIMED, select_entries(env, resource->loader, argv[1]));
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
  if (loader->deferred) return status;
  for (size_t i = 0; event == XT_PUSH_DONE && i < push->storages && status == XT_STATUS_ok; i++)
    if (push->regions[i]) status = xt_loader_storage_complete(loader, i, out, error);
  return status;
}

/* Feeds the chunk until it is used up, the limits are reached, or the caller must react to an event. */
static xt_status feed(loader_resource *resource, const ErlNifBinary *chunk, const xt_loader_limits *limits,
                      xt_ready_tensors *out, feed_result *result, xt_error *error) {
  xt_loader *loader = resource->loader;
  size_t start = resource->resume, used = 0;
  uint64_t bytes;
  xt_status status = XT_STATUS_ok;
  if (loader->missing && !loader->next_immediate) status = xt_loader_make_immediate(loader, out, error);
  while (status == XT_STATUS_ok) {
    size_t size = chunk->size - resource->resume;
    if (size > limits->bytes) size = limits->bytes;
    status = xt_push_feed(&loader->push, chunk->data + resource->resume, size, &used, &result->event, error);
    resource->resume += used;
    if (status == XT_STATUS_ok) status = handle_event(loader, result->event, out, error);
    if (status == XT_STATUS_ok && result->event == XT_PUSH_DESCRIBED && !resource->selects) {
      status = xt_loader_select(loader, NULL, &bytes, error);
      if (status == XT_STATUS_ok) status = xt_loader_make_immediate(loader, out, error);
      if (status != XT_STATUS_ok) error->collect = false; /* the state has changed: the call cannot be repeated */
      continue;
    }
    if (status != XT_STATUS_ok || result->event == XT_PUSH_DESCRIBED || result->event == XT_PUSH_DONE) break;
    result->paused = resource->resume < chunk->size || loader->push.put_off;
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

/* {:ok, value, bytes} with the bytes of all parts of the call. */
static ERL_NIF_TERM make_fed(ErlNifEnv *env, loader_resource *resource, ERL_NIF_TERM value) {
  int64_t bytes = resource->taken + xt_memory_taken();
  resource->taken = 0;
  return enif_make_tuple3(env, xt_am_ok, value, enif_make_int64(env, bytes));
}

static ERL_NIF_TERM feed_chunk(ErlNifEnv *env, loader_resource *resource, const ErlNifBinary *chunk,
                               const xt_loader_limits *limits, const ERL_NIF_TERM argv[]) {
  xt_push *push = &resource->loader->push;
  push->brief = limits->brief;
  push->stop = caller_is_dead;
  push->context = env;
  xt_error error;
  xt_ready_tensors out = {.env = env, .list = enif_make_list(env, 0)};
  feed_result result = {XT_PUSH_MORE, false};
  xt_status status = feed(resource, chunk, limits, &out, &result, &error);
  /* tensors that were created before the budget was exhausted must not be lost */
  bool retry = status != XT_STATUS_ok && error.collect && out.count;
  if (status != XT_STATUS_ok && !retry) {
    release_tensors(&out);
    resource->retries = error.collect;
    return leave(env, resource, error.collect ? STAY_CLAIMED : HAVE_ENDED, xt_make_error(env, &error));
  }
  ERL_NIF_TERM received = enif_make_uint64(env, push->received);
  ERL_NIF_TERM missing = enif_make_uint64(env, xt_push_missing(push));
  if (retry || (result.paused && result.event == XT_PUSH_MORE) || result.event == XT_PUSH_STORAGE) {
    bool quiet = resource->loader->deferred && !resource->reports && !retry;
    if (!quiet)
      return leave(env, resource, STAY_CLAIMED,
                   make_fed(env, resource, enif_make_tuple4(env, xt_am_again, received, missing, out.list)));
    resource->taken += xt_memory_taken();
    return leave(env, resource, STAY_CLAIMED,
                 enif_schedule_nif(env, "loader_feed", XT_NORMAL, xt_nif_loader_feed, 3,
                                   (ERL_NIF_TERM[]){argv[0], xt_am_nil, argv[2]}));
  }
  if (result.event == XT_PUSH_DESCRIBED)
    return leave(env, resource, STAY_CLAIMED, make_fed(env, resource, xt_am_described));
  ERL_NIF_TERM used = enif_make_uint64(env, resource->resume);
  resource->resume = 0;
  if (result.event == XT_PUSH_DONE)
    return leave(env, resource, STAY_CLAIMED,
                 make_fed(env, resource, enif_make_tuple3(env, xt_am_done, used, out.list)));
  bool idle = !out.count && !resource->reports;
  ERL_NIF_TERM number = idle ? enif_make_uint64(env, resource->number + 1) : xt_am_nil;
  ERL_NIF_TERM more = enif_make_tuple5(env, xt_am_more, number, received, missing, out.list);
  return leave(env, resource, idle ? BE_IDLE : STAY_CLAIMED, make_fed(env, resource, more));
}

/* Returns whether feeding takes more than microseconds. If a call is inside, the caller will get an error at once. */
static bool takes_long(loader_resource *resource) {
  xt_mutex_lock(&resource->lock);
  const xt_loader *loader = resource->loader;
  bool quick = loader && is_light(loader) && (!loader->missing || (loader->plain && loader->next_immediate));
  bool brief = resource->inside || !loader || quick;
  xt_mutex_unlock(&resource->lock);
  return !brief;
}

/* loader_stored(loader, bytes) :: {:ok, :ok, 0}     before loader_feed: the stream was unpacked, and had so many bytes
 * up to here */
ERL_NIF_TERM xt_nif_loader_stored(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  ErlNifUInt64 bytes;
  (void)argc;
  if (!enif_get_uint64(env, argv[1], &bytes) || !enif_get_resource(env, argv[0], xt_loader_type, (void **)&resource))
    return enif_make_badarg(env);
  xt_mutex_lock(&resource->lock);
  resource->unpacked = true;
  resource->stored = bytes;
  xt_mutex_unlock(&resource->lock);
  return xt_make_ok(env, xt_am_ok);
}

/* loader_feed(loader, number | nil, binary)
 *   :: {:ok, {:more, number | nil, bytes received, bytes missing, ready} | {:again, bytes received, bytes missing,
 * ready} | :described | {:done, bytes used, ready}, bytes} | {:error, e}
 *
 * ready :: [{entry's index, tensor}]. A number claims the loader; nil goes on with the claim. After :again and
 * :described, and if the budget was exceeded, the same binary must be passed with nil: the loader keeps count of the
 * bytes that it has used. After {:more, number, …} the claim has ended; after {:more, nil, …} the next binary follows
 * with nil, or loader_release. */
ERL_NIF_TERM xt_nif_loader_feed(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  ErlNifBinary chunk;
  ERL_NIF_TERM result;
  if (!enif_inspect_binary(env, argv[2], &chunk) ||
      !enif_get_resource(env, argv[0], xt_loader_type, (void **)&resource))
    return enif_make_badarg(env);
  bool on_dirty = enif_thread_type() != ERL_NIF_THR_NORMAL_SCHEDULER;
  if (!on_dirty && takes_long(resource))
    return enif_schedule_nif(env, "loader_feed", XT_DIRTY_CPU, xt_nif_loader_feed, argc, argv);
  if (!enter(env, argv[0], argv[1], &resource, &result)) return result;
  const xt_loader *loader = resource->loader;
  if (resource->resume > chunk.size || (loader->push.regions && !loader->missing))
    return leave(env, resource, STAY_CLAIMED, enif_make_badarg(env));
  if (resource->unpacked) xt_push_set_stored(&resource->loader->push, resource->stored);
  if (!on_dirty) enif_consume_timeslice(env, BRIEF_PERCENT);
  return feed_chunk(env, resource, &chunk, on_dirty ? &xt_loader_dirty_limits : &xt_loader_brief_limits, argv);
}

/* ---- The end ---- */

/* loader_finish(loader, nil | {ordered?, MapSet of one element}) :: {:ok, [tensor] | object, bytes} | {:error, e}
 *
 * The selected tensors of a deferred loader after :done, or the object, if all were selected. */
ERL_NIF_TERM xt_nif_loader_finish(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  ERL_NIF_TERM result, value = xt_am_nil;
  xt_object_style style;
  xt_error error;
  bool whole = argv[1] != xt_am_nil;
  (void)argc;
  if (whole && !xt_get_object_style(env, argv[1], &style)) return enif_make_badarg(env);
  if (!enter(env, argv[0], xt_am_nil, &resource, &result)) return result;
  const xt_loader *loader = resource->loader;
  const xt_checkpoint *c = loader->push.checkpoint;
  xt_storage_origin origin = {c, NULL, loader->push.regions};
  bool complete = !whole || loader->selected_count == c->index.count;
  if (!loader->deferred || !loader->missing || loader->push.event != XT_PUSH_DONE || !complete)
    return leave(env, resource, STAY_CLAIMED, enif_make_badarg(env));
  xt_status status = xt_materialize_entries(env, &origin, loader->selected, loader->selected_count,
                                            whole ? &style : NULL, &value, &error);
  return leave(env, resource, STAY_CLAIMED, xt_make_result(env, status, value, &error));
}

/* loader_ended(loader, number) :: {:error, e}     for a stream that ended early; the error contains the number of bytes
 * received */
ERL_NIF_TERM xt_nif_loader_ended(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  ERL_NIF_TERM result;
  xt_error error;
  (void)argc;
  if (!enter(env, argv[0], argv[1], &resource, &result)) return result;
  xt_push_end(&resource->loader->push, &error);
  return leave(env, resource, HAVE_ENDED, xt_make_error(env, &error));
}
