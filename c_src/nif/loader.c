/* Checkpoints that come in pieces: what is fed becomes tensors as their storages complete.
 *
 * One process at a time holds the stream (claim … release). A number that grows with each release tells an old state
 * of the stream from the present one. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/push.h"
#include "core/memory/memory.h"
#include "nif/checkpoint.h"
#include "nif/materialize.h"
#include "nif/table.h"
#include "nif/tensor.h"

/* After so many bytes, or tensors, a call comes back to its process. A brief one takes a fraction of a millisecond,
 * with the faults of fresh memory, and so needs no dirty scheduler. */
typedef struct {
  size_t bytes, tensors;
  bool brief;
} most;
static const most dirty = {32 << 20, 10000, false}, brief = {256 << 10, 32, true};
enum { BRIEF_PERCENT = 20 };

/* What the stream holds; the reaper frees it. */
typedef struct {
  xt_reapable reapable; /* first */
  xt_push push;
  xt_checkpoint_resource *checkpoint; /* in use */
  uint32_t *missing;                  /* of each entry: storages that have not come; UINT32_MAX: not selected */
  size_t *first, *waiting;            /* entries that wait for storage s: waiting[first[s]] … waiting[first[s + 1]] */
  size_t *users;                      /* of each storage: entries that were not made yet */
  bool plain;                         /* selected are only tensors that are made in microseconds */
  size_t at_once;                     /* the next entry that needs no storage, or whose turn has not come */
  bool *counted;                      /* storages that are complete */
} loader;

typedef struct {
  pthread_mutex_t lock; /* of what is below */
  bool claimed;
  ErlNifPid owner;
  uint64_t number;
  loader *loader; /* NULL: it is over */
  size_t resume;  /* in the piece that is being fed */
} loader_resource;

static void free_loader(xt_reapable *self) {
  loader *s = (loader *)self;
  xt_push_free(&s->push);
  xt_checkpoint_leave(s->checkpoint);
  enif_release_resource(s->checkpoint);
  free(s->missing);
  free(s->first);
  free(s->waiting);
  free(s->users);
  free(s->counted);
  free(s);
}

static void loader_destroyed(ErlNifEnv *env, void *object) {
  loader_resource *resource = object;
  (void)env;
  if (resource->loader) xt_reaper_push(&resource->loader->reapable);
  pthread_mutex_destroy(&resource->lock);
}

const ErlNifResourceTypeInit xt_loader_callbacks = {.dtor = loader_destroyed};

/* loader_new(options, spool_bytes) :: {:ok, {stream, checkpoint}, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_loader_new(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 spool_bytes;
  ERL_NIF_TERM checkpoint;
  xt_error error;
  (void)argc;
  if (!enif_get_uint64(env, argv[1], &spool_bytes)) return enif_make_badarg(env);
  loader *s = calloc(1, sizeof *s);
  if (!s) {
    xt_error_set(&error, XT_STATUS_no_memory, "no memory for a stream");
    return xt_make_error(env, &error);
  }
  xt_status status = xt_checkpoint_for_push(env, argv[0], &s->checkpoint, &checkpoint, &error);
  if (status != XT_STATUS_ok) {
    free(s);
    return status == XT_STATUS_bad_argument ? enif_make_badarg(env) : xt_make_error(env, &error);
  }
  s->reapable.run = free_loader;
  xt_push_begin(&s->push, &s->checkpoint->handle->checkpoint, spool_bytes);
  loader_resource *resource = enif_alloc_resource(xt_loader_type, sizeof *resource);
  memset(resource, 0, sizeof *resource);
  pthread_mutex_init(&resource->lock, NULL);
  resource->loader = s;
  ERL_NIF_TERM term = enif_make_resource(env, resource);
  enif_release_resource(resource);
  return xt_make_ok(env, enif_make_tuple2(env, term, checkpoint));
}

/* ---- One at a time ---- */

static xt_status claim(ErlNifEnv *env, loader_resource *resource, uint64_t number, xt_error *error) {
  if (resource->claimed && enif_is_process_alive(env, &resource->owner))
    return xt_error_set(error, XT_STATUS_busy, "another process is feeding this loader");
  if (resource->claimed || !resource->loader)
    return xt_error_set(error, XT_STATUS_stale, "this stream is over: begin another with loader/1");
  if (number != resource->number)
    return xt_error_set(error, XT_STATUS_stale, "this loader was fed before: go on with the one that feed/2 gave");
  resource->claimed = true;
  enif_self(env, &resource->owner);
  resource->resume = 0;
  return XT_STATUS_ok;
}

/* loader_claim(stream, number) :: {:ok, :ok, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_loader_claim(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  ErlNifUInt64 number;
  xt_error error;
  (void)argc;
  if (!enif_get_resource(env, argv[0], xt_loader_type, (void **)&resource) || !enif_get_uint64(env, argv[1], &number))
    return enif_make_badarg(env);
  pthread_mutex_lock(&resource->lock);
  xt_status status = claim(env, resource, number, &error);
  pthread_mutex_unlock(&resource->lock);
  return status == XT_STATUS_ok ? xt_make_ok(env, xt_am_ok) : xt_make_error(env, &error);
}

static bool get_claimed(ErlNifEnv *env, ERL_NIF_TERM term, loader_resource **out) {
  ErlNifPid self;
  if (!enif_get_resource(env, term, xt_loader_type, (void **)out)) return false;
  enif_self(env, &self);
  pthread_mutex_lock(&(*out)->lock);
  bool mine = (*out)->claimed && !enif_compare_pids(&self, &(*out)->owner) && (*out)->loader;
  pthread_mutex_unlock(&(*out)->lock);
  return mine;
}

/* loader_release(stream, over?) :: number     of the state that may be fed now */
ERL_NIF_TERM xt_nif_loader_release(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  bool over;
  (void)argc;
  if (!get_claimed(env, argv[0], &resource) || !xt_get_bool(env, argv[1], &over)) return enif_make_badarg(env);
  pthread_mutex_lock(&resource->lock);
  loader *gone = over ? resource->loader : NULL;
  if (over) resource->loader = NULL;
  resource->claimed = false;
  uint64_t number = ++resource->number;
  pthread_mutex_unlock(&resource->lock);
  if (gone) xt_reaper_push(&gone->reapable);
  return enif_make_uint64(env, number);
}

/* ---- Which tensors ---- */

static xt_status no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "no memory for the stream's tensors");
}

typedef void each_storage(loader *s, size_t entry, uint32_t storage);

/* The storages whose bytes must come for an entry. */
static void for_storages(loader *s, size_t i, each_storage *then) {
  const xt_checkpoint *c = s->push.checkpoint;
  const xt_tensor_desc *t = c->index.entries[i].tensor;
  if (t->storage != XT_NO_STORAGE && c->records[t->storage]) then(s, i, t->storage);
  for (uint32_t part = 0; part < t->part_count; part++) {
    uint32_t storage = t->more->parts[part]->storage;
    if (storage != XT_NO_STORAGE && c->records[storage]) then(s, i, storage);
  }
}

static void count_user(loader *s, size_t entry, uint32_t storage) {
  s->missing[entry]++;
  s->users[storage]++;
  s->first[storage + 1]++;
  s->push.wanted[storage] = true;
}

static void add_waiting(loader *s, size_t entry, uint32_t storage) { s->waiting[s->first[storage]++] = entry; }

static bool is_plain(const xt_checkpoint *c, const xt_tensor_desc *t) {
  return t->layout == XT_LAYOUT_STRIDED && t->storage != XT_NO_STORAGE && c->records[t->storage] && !t->part_count &&
         !t->quantized && !t->conj && !t->neg;
}

static xt_status plan(loader *s, const bool *selected, xt_error *error) {
  const xt_checkpoint *c = s->push.checkpoint;
  size_t entries = c->index.count, storages = c->rebuild.storage_count, total = 0;
  s->missing = calloc(entries + 1, sizeof *s->missing);
  s->users = calloc(storages + 1, sizeof *s->users);
  s->first = calloc(storages + 2, sizeof *s->first);
  s->counted = calloc(storages + 1, sizeof *s->counted);
  if (!s->missing || !s->users || !s->first || !s->counted) return no_memory(error);
  memset(s->push.wanted, 0, storages);
  s->plain = true;
  for (size_t i = 0; i < entries; i++) {
    if (selected[i]) for_storages(s, i, count_user);
    else s->missing[i] = UINT32_MAX;
    if (selected[i]) s->plain &= is_plain(c, c->index.entries[i].tensor);
  }
  for (size_t i = 0; i < storages; i++) {
    total = s->first[i + 1] += s->first[i];
    s->plain &= s->users[i] <= brief.tensors; /* which are made together */
  }
  s->waiting = calloc(total + 1, sizeof *s->waiting);
  if (!s->waiting) return no_memory(error);
  for (size_t i = 0; i < entries; i++)
    if (selected[i]) for_storages(s, i, add_waiting);
  /* filling moved each start to the next one's: back */
  memmove(s->first + 1, s->first, storages * sizeof *s->first);
  s->first[0] = 0;
  return XT_STATUS_ok;
}

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

/* loader_select(stream, [entry's index] | :all) :: {:ok, {bytes to come, bytes of all tensors}, 0} | {:error, e}
 *
 * Once, when the stream is described. */
ERL_NIF_TERM xt_nif_loader_select(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  xt_error error;
  (void)argc;
  if (!get_claimed(env, argv[0], &resource)) return enif_make_badarg(env);
  loader *s = resource->loader;
  const xt_checkpoint *c = s->push.checkpoint;
  if (!s->push.regions || s->missing) return enif_make_badarg(env);
  bool *selected = calloc(c->index.count + 1, sizeof *selected);
  if (!selected) return xt_make_error(env, (no_memory(&error), &error));
  if (!get_selected(env, argv[1], selected, c->index.count)) {
    free(selected);
    return enif_make_badarg(env);
  }
  uint64_t bytes = 0, logical = 0;
  xt_status status = plan(s, selected, &error);
  for (size_t i = 0; i < c->index.count; i++) {
    if (selected[i]) logical += (uint64_t)xt_tensor_desc_bytes(c->index.entries[i].tensor);
    if (logical > INT64_MAX) logical = INT64_MAX;
  }
  for (size_t i = 0; i < s->push.storages && status == XT_STATUS_ok; i++) {
    if (s->push.wanted[i] && !c->rebuild.storages[i].data) bytes += c->rebuild.storages[i].bytes;
    if (bytes > INT64_MAX) bytes = INT64_MAX;
  }
  free(selected);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  return xt_make_ok(env, enif_make_tuple2(env, enif_make_uint64(env, bytes), enif_make_uint64(env, logical)));
}

/* ---- Tensors ---- */

typedef struct {
  ErlNifEnv *env;
  ERL_NIF_TERM list; /* [{index, tensor}], the last first */
  size_t count;
} ready;

static void use_storage(loader *s, size_t entry, uint32_t storage) {
  (void)entry;
  if (--s->users[storage]) return;
  xt_region_drop(s->push.regions[storage]); /* its tensors hold it */
  s->push.regions[storage] = NULL;
}

static xt_status make_entry(loader *s, size_t i, ready *out, xt_error *error) {
  const xt_checkpoint *c = s->push.checkpoint;
  xt_storage_origin from = {c, NULL, s->push.regions};
  ERL_NIF_TERM term;
  xt_status status = xt_materialize_term(out->env, &from, c->index.entries[i].tensor, &term, error);
  if (status != XT_STATUS_ok) return status;
  ERL_NIF_TERM pair = enif_make_tuple2(out->env, enif_make_uint64(out->env, i), term);
  out->list = enif_make_list_cell(out->env, pair, out->list);
  out->count++;
  for_storages(s, i, use_storage);
  return status;
}

/* Entries without storages (meta, no tensors' bytes at all). */
static xt_status make_at_once(loader *s, ready *out, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  size_t count = s->push.checkpoint->index.count;
  for (; s->at_once < count && status == XT_STATUS_ok; s->at_once++)
    if (!s->missing[s->at_once]) status = make_entry(s, s->at_once, out, error);
  if (status != XT_STATUS_ok) error->collect = false;
  return status;
}

static xt_status storage_came(loader *s, size_t storage, ready *out, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  if (s->counted[storage]) return status;
  s->counted[storage] = true;
  for (size_t i = s->first[storage]; i < s->first[storage + 1] && status == XT_STATUS_ok; i++)
    if (--s->missing[s->waiting[i]] == 0) status = make_entry(s, s->waiting[i], out, error);
  if (status != XT_STATUS_ok) error->collect = false; /* it was counted: nobody can try again */
  return status;
}

/* ---- Feeding ---- */

typedef struct {
  xt_push_event event;
  bool paused; /* there is more of the piece */
} fed;

/* The byte order may come after the object: a storage that has to be turned round takes its time. */
static bool is_light(const loader *s) {
  const bool host = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
  return s->push.light && s->push.checkpoint->big_endian == host;
}

static xt_status feed(ErlNifEnv *env, loader_resource *resource, const ErlNifBinary *piece, ready *out, fed *result,
                      const most *most, xt_error *error) {
  loader *s = resource->loader;
  size_t began = resource->resume, used = 0;
  xt_status status = XT_STATUS_ok;
  if (s->missing && !s->at_once) status = make_at_once(s, out, error);
  while (status == XT_STATUS_ok) {
    size_t left = piece->size - resource->resume, slice = left < most->bytes ? left : most->bytes;
    status = xt_push_feed(&s->push, piece->data + resource->resume, slice, &used, &result->event, error);
    resource->resume += used;
    if (status != XT_STATUS_ok) break;
    if (result->event == XT_PUSH_STORAGE && s->push.wanted[s->push.storage])
      status = storage_came(s, s->push.storage, out, error);
    if (result->event == XT_PUSH_DESCRIBED) s->checkpoint->handle->open = true;
    if (result->event == XT_PUSH_DESCRIBED || result->event == XT_PUSH_DONE) break;
    result->paused = resource->resume < piece->size;
    bool enough =
        resource->resume - began >= most->bytes || out->count >= most->tensors || (most->brief && !is_light(s));
    if (enough && !most->brief && !enif_is_current_process_alive(env))
      return xt_error_set(error, XT_STATUS_stopping, "the caller is gone");
    if (enough || (result->event == XT_PUSH_MORE && !result->paused)) break;
  }
  if (status == XT_STATUS_ok && result->event == XT_PUSH_DONE)
    for (size_t i = 0; i < s->push.storages && status == XT_STATUS_ok; i++)
      if (s->push.regions[i]) status = storage_came(s, i, out, error);
  return status;
}

static ERL_NIF_TERM feed_and_tell(ErlNifEnv *env, loader_resource *resource, const ErlNifBinary *piece,
                                  const most *most) {
  loader *s = resource->loader;
  xt_error error;
  ready out = {env, enif_make_list(env, 0), 0};
  fed result = {XT_PUSH_MORE, false};
  xt_status status = feed(env, resource, piece, &out, &result, most, &error);
  bool again = status != XT_STATUS_ok && error.collect && out.count; /* what was made must not be lost */
  if (status != XT_STATUS_ok && !again) return xt_make_error(env, &error);
  ERL_NIF_TERM received = enif_make_uint64(env, s->push.received);
  ERL_NIF_TERM missing = enif_make_uint64(env, xt_push_missing(&s->push));
  if (again || (result.paused && result.event == XT_PUSH_MORE) || result.event == XT_PUSH_STORAGE)
    return xt_make_ok(env, enif_make_tuple4(env, xt_am_again, received, missing, out.list));
  if (result.event == XT_PUSH_DESCRIBED) return xt_make_ok(env, xt_am_described);
  ERL_NIF_TERM used = enif_make_uint64(env, resource->resume);
  if (result.event == XT_PUSH_DONE) return xt_make_ok(env, enif_make_tuple3(env, xt_am_done, used, out.list));
  resource->resume = 0;
  return xt_make_ok(env, enif_make_tuple4(env, xt_am_more, received, missing, out.list));
}

/* loader_feed(stream, binary)
 *   :: {:ok, :described | {:again | :more, bytes received, bytes missing, ready} | {:done, bytes used, ready}, bytes}
 *    | {:error, e}
 *
 * ready :: [{entry's index, tensor}]. Until :more or :done the same binary is given again: the stream knows how far it
 * came. */
ERL_NIF_TERM xt_nif_loader_feed(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  ErlNifBinary piece;
  if (!get_claimed(env, argv[0], &resource) || !enif_inspect_binary(env, argv[1], &piece)) return enif_make_badarg(env);
  loader *s = resource->loader;
  if (resource->resume > piece.size || (s->push.regions && !s->missing)) return enif_make_badarg(env);
  bool on_dirty = enif_thread_type() != ERL_NIF_THR_NORMAL_SCHEDULER;
  bool is_brief = s->plain && s->at_once && is_light(s);
  if (!on_dirty && !is_brief)
    return enif_schedule_nif(env, "loader_feed", XT_DIRTY_CPU, xt_nif_loader_feed, argc, argv);
  if (!on_dirty) enif_consume_timeslice(env, BRIEF_PERCENT);
  return feed_and_tell(env, resource, &piece, on_dirty ? &dirty : &brief);
}

/* loader_ended(stream) :: {:error, e}     the stream ended too early: how far it came */
ERL_NIF_TERM xt_nif_loader_ended(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  loader_resource *resource;
  xt_error error;
  (void)argc;
  if (!get_claimed(env, argv[0], &resource)) return enif_make_badarg(env);
  xt_push_end(&resource->loader->push, &error);
  return xt_make_error(env, &error);
}
