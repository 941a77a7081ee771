/* When is garbage free?
 *
 * A destructor is no part of the collection that found the garbage: it is queued for the scheduler that collected, or
 * for the first one when a dirty scheduler did, and runs there some time later. Markers are destroyed through the same
 * queues. One is garbage from the start, so that the collection queues it beside all the rest, and each marker queues
 * the next one, behind what was there and behind what destructors have dropped in turn. */

#include <stdatomic.h>
#include <time.h>

#include "core/memory/reaper.h"
#include "core/os/background.h"
#include "core/os/exit_guard.h"
#include "nif/table.h"
#include "nif/term.h"

enum { HOPS = 4 };

typedef struct {
  atomic_int passed; /* markers that have come to their last hop */
} mark;

typedef struct {
  mark *mark;
  int hops;
} marker;

/* The caller holds the new marker. */
static marker *new_marker(mark *of, int hops) {
  marker *made = enif_alloc_resource(xt_collection_marker_type, sizeof *made);
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

const ErlNifResourceTypeInit xt_collection_callbacks = {NULL};
const ErlNifResourceTypeInit xt_collection_marker_callbacks = {.dtor = marker_destroyed};

/* memory_collect_begin() :: mark     leaves a marker in the caller's garbage */
ERL_NIF_TERM xt_nif_memory_collect_begin(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  mark *made = enif_alloc_resource(xt_collection_type, sizeof *made);
  atomic_init(&made->passed, 0);
  marker *first = new_marker(made, HOPS);
  enif_make_resource(env, first);
  ERL_NIF_TERM term = enif_make_resource(env, made);
  enif_release_resource(first);
  enif_release_resource(made);
  return term;
}

typedef struct {
  ErlNifEnv *env;
  struct timespec until;
} patience;

static int left_ms(const patience *p) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t ms = (p->until.tv_sec - now.tv_sec) * 1000 + (p->until.tv_nsec - now.tv_nsec) / 1000000;
  return ms > 0 && !xt_exit_guard_stopping() && enif_is_current_process_alive(p->env) ? (int)ms : 0;
}

static bool wait_for(mark *self, int markers, const patience *p) {
  for (long nap = 20000; atomic_load(&self->passed) < markers && left_ms(p); nap = nap < 1000000 ? 2 * nap : nap)
    nanosleep(&(struct timespec){0, nap}, NULL);
  return atomic_load(&self->passed) >= markers;
}

/* memory_collect_wait(mark, rounds, milliseconds) :: boolean     after a collection: waits until what it found is free
 *
 * What is freed may own what has a destructor, which waits for the first scheduler and is pushed from there: so there
 * is another round, until one finds nothing to do. Others of the node drop things all the time: rounds are counted. */
ERL_NIF_TERM xt_nif_memory_collect_wait(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  void *object;
  int rounds, timeout;
  bool is_free = true, quiet = false;
  patience p = {.env = env};
  (void)argc;
  if (!enif_get_resource(env, argv[0], xt_collection_type, &object) || !enif_get_int(env, argv[1], &rounds) ||
      !enif_get_int(env, argv[2], &timeout) || timeout < 0)
    return enif_make_badarg(env);
  clock_gettime(CLOCK_MONOTONIC, &p.until);
  p.until.tv_sec += timeout / 1000;
  p.until.tv_nsec += timeout % 1000 * 1000000l;
  for (int round = 0; is_free && !quiet && round < rounds; round++) {
    uint64_t before = xt_reaper_pushed();
    bool was_idle = xt_reaper_drain(0);
    enif_release_resource(new_marker(object, HOPS)); /* into the queue of the first scheduler */
    is_free = wait_for(object, round + 2, &p);
    xt_background_settle(left_ms(&p));
    is_free = xt_reaper_drain(left_ms(&p)) && is_free;
    quiet = was_idle && xt_reaper_pushed() == before;
  }
  return xt_make_bool(is_free);
}
