/* Counters and the budget of native memory. */
#include "nif_memory.h"

#include <stdatomic.h>
#include <time.h>

#include "core/calls.h"
#include "core/idle.h"
#include "core/memory.h"
#include "core/reaper.h"
#include "nif_table.h"
#include "term.h"

/* memory_live() :: %{tensors: n, bytes: n, mapped: n, threads: n} */
ERL_NIF_TERM xt_nif_memory_live(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  ERL_NIF_TERM keys[] = {xt_am_tensors, xt_am_bytes, xt_am_mapped, xt_am_threads};
  ERL_NIF_TERM values[] = {enif_make_int64(env, atomic_load(&xt_memory_live.tensors)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.bytes)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.mapped)),
                           enif_make_int64(env, atomic_load(&xt_memory_live.threads))};
  return xt_make_struct(env, keys, values, 4);
}

/* memory_budget() :: bytes | :infinity */
ERL_NIF_TERM xt_nif_memory_budget(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  int64_t budget = xt_memory_budget();
  return budget == INT64_MAX ? xt_am_infinity : enif_make_int64(env, budget);
}

/* memory_set_budget(bytes | :infinity) :: :ok */
ERL_NIF_TERM xt_nif_memory_set_budget(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifSInt64 bytes = INT64_MAX;
  (void)argc;
  if (argv[0] != xt_am_infinity && (!enif_get_int64(env, argv[0], &bytes) || bytes < 0)) return enif_make_badarg(env);
  xt_memory_set_budget(bytes);
  return xt_am_ok;
}

/* ---- When is garbage free? ----
 *
 * A destructor is no part of the collection that found the garbage: it is queued for the scheduler that collected, or
 * for the first one when a dirty scheduler did, and runs there some time later. Markers are destroyed through the same
 * queues. One is garbage from the start, so that the collection queues it beside all the rest, and each marker queues
 * the next one, behind what was there and behind what destructors have dropped in turn. */
enum { HOPS = 4, ROUNDS = 16 };

typedef struct {
  atomic_int passed; /* markers that have come to their last hop */
} mark;

typedef struct {
  mark *mark;
  int hops;
} marker;

static ErlNifResourceType *mark_type, *marker_type;

/* The one that holds the new marker lets it go. */
static marker *new_marker(mark *of, int hops) {
  marker *made = enif_alloc_resource(marker_type, sizeof *made);
  enif_keep_resource(of);
  *made = (marker){of, hops};
  return made;
}

static void marker_destroyed(ErlNifEnv *env, void *object) {
  marker *self = object;
  (void)env;
  if (self->hops) enif_release_resource(new_marker(self->mark, self->hops - 1));
  else atomic_fetch_add(&self->mark->passed, 1);
  enif_release_resource(self->mark);
}

bool xt_memory_load(ErlNifEnv *env) {
  ErlNifResourceTypeInit init = {.dtor = marker_destroyed}, none = {NULL};
  marker_type = enif_open_resource_type_x(env, "extorch_marker", &init, ERL_NIF_RT_CREATE, NULL);
  mark_type = enif_open_resource_type_x(env, "extorch_mark", &none, ERL_NIF_RT_CREATE, NULL);
  return marker_type && mark_type;
}

/* memory_mark() :: mark     leaves a marker in the caller's garbage */
ERL_NIF_TERM xt_nif_memory_mark(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  mark *made = enif_alloc_resource(mark_type, sizeof *made);
  atomic_init(&made->passed, 0);
  marker *first = new_marker(made, HOPS);
  enif_make_resource(env, first);
  enif_release_resource(first);
  ERL_NIF_TERM term = enif_make_resource(env, made);
  enif_release_resource(made);
  return term;
}

static bool wait_for(mark *self, int markers, int timeout_ms) {
  int64_t waited = 0, nap = 20000;
  while (atomic_load(&self->passed) < markers && waited / 1000000 < timeout_ms && !xt_calls_stopping()) {
    nanosleep(&(struct timespec){0, (long)nap}, NULL);
    waited += nap;
    if (nap < 1000000) nap *= 2;
  }
  return atomic_load(&self->passed) >= markers;
}

/* memory_drain(mark, milliseconds) :: boolean     after a collection: waits until what it found is free */
ERL_NIF_TERM xt_nif_memory_drain(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  void *object;
  int timeout;
  bool free = true, quiet = false;
  (void)argc;
  if (!enif_get_resource(env, argv[0], mark_type, &object) || !enif_get_int(env, argv[1], &timeout) || timeout < 0)
    return enif_make_badarg(env);
  /* What is freed may own what has a destructor, which waits for the first scheduler and is pushed from there. Others
   * of the node may drop things all the time: the rounds are counted. */
  for (int round = 0; free && !quiet && round < ROUNDS; round++) {
    uint64_t before = xt_reaper_pushed();
    xt_idle_settle(timeout);
    free = xt_reaper_drain(timeout);
    enif_release_resource(new_marker(object, HOPS)); /* into the queue of the first scheduler */
    free = wait_for(object, round + 2, timeout) && free;
    quiet = xt_reaper_pushed() == before;
  }
  return xt_make_bool(free);
}
