/* Waits until the garbage that a collection found has been freed.
 *
 * Destructors do not run during the collection that found the garbage. They are queued for the scheduler that
 * collected, or for the first scheduler if a dirty one did, and run some time later. Markers are resources that are
 * destroyed through the same queues. The first marker is garbage from the start, so the collection queues it together
 * with all other garbage. The destructor of a marker queues the next marker, behind everything that is in the queue and
 * behind what other destructors have released meanwhile. After HOPS markers, all of that has been destroyed. */
#include <stdatomic.h>

#include "core/memory/reaper.h"
#include "core/os/background.h"
#include "core/os/clock.h"
#include "core/os/exit_guard.h"
#include "nif/table.h"
#include "nif/term.h"

enum { HOPS = 4, NS_PER_MS = 1000000 };

typedef struct {
  atomic_int finished; /* chains of markers that have reached their last hop */
} collection;

typedef struct {
  collection *collection;
  int hops; /* markers that follow */
} marker;

/* The caller must release the new marker. */
static marker *new_marker(collection *owner, int hops) {
  marker *self = enif_alloc_resource(xt_collection_marker_type, sizeof *self);
  enif_keep_resource(owner);
  *self = (marker){owner, hops};
  return self;
}

static void destroy_marker(ErlNifEnv *env, void *object) {
  marker *self = object;
  (void)env;
  if (self->hops) enif_release_resource(new_marker(self->collection, self->hops - 1));
  else atomic_fetch_add(&self->collection->finished, 1);
  enif_release_resource(self->collection);
}

const ErlNifResourceTypeInit xt_collection_callbacks = {NULL};
const ErlNifResourceTypeInit xt_collection_marker_callbacks = {.dtor = destroy_marker};

/* memory_collect_begin() :: collection     leaves a marker as garbage of the calling process */
ERL_NIF_TERM xt_nif_memory_collect_begin(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  collection *self = enif_alloc_resource(xt_collection_type, sizeof *self);
  atomic_init(&self->finished, 0);
  marker *first = new_marker(self, HOPS);
  enif_make_resource(env, first);
  ERL_NIF_TERM term = enif_make_resource(env, self);
  enif_release_resource(first);
  enif_release_resource(self);
  return term;
}

typedef struct {
  ErlNifEnv *env;
  int64_t until_ns; /* by xt_clock_ns */
} patience;

/* Returns the remaining time; 0 if the node is stopping or the caller is dead. */
static int left_ms(const patience *p) {
  int64_t ms = (p->until_ns - xt_clock_ns()) / NS_PER_MS;
  return ms > 0 && !xt_exit_guard_stopping() && enif_is_current_process_alive(p->env) ? (int)ms : 0;
}

static bool wait_for(collection *self, int chains, const patience *p) {
  for (int nap_us = 20; atomic_load(&self->finished) < chains && left_ms(p);
       nap_us = nap_us < 1000 ? 2 * nap_us : nap_us)
    xt_clock_sleep_us(nap_us);
  return atomic_load(&self->finished) >= chains;
}

/* memory_collect_wait(collection, rounds, milliseconds) :: boolean
 *
 * Called after a garbage collection. Waits until the garbage is freed and returns false on timeout. Freed memory may
 * own resources whose destructors are queued on the first scheduler and push to the reaper again. So another round
 * follows until one finds nothing to do. The number of rounds is limited, since other processes release memory all the
 * time. */
ERL_NIF_TERM xt_nif_memory_collect_wait(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  void *object;
  int rounds, timeout;
  bool is_free = true, quiet = false;
  patience p = {.env = env};
  (void)argc;
  if (!enif_get_resource(env, argv[0], xt_collection_type, &object) || !enif_get_int(env, argv[1], &rounds) ||
      !enif_get_int(env, argv[2], &timeout) || timeout < 0)
    return enif_make_badarg(env);
  p.until_ns = xt_clock_ns() + (int64_t)timeout * NS_PER_MS;
  for (int round = 0; is_free && !quiet && round < rounds; round++) {
    uint64_t before = xt_reaper_pushed();
    bool was_idle = xt_reaper_drain(0);
    enif_release_resource(new_marker(object, HOPS)); /* queued on the first scheduler */
    is_free = wait_for(object, round + 2, &p);
    xt_background_settle(left_ms(&p));
    is_free = xt_reaper_drain(left_ms(&p)) && is_free;
    quiet = was_idle && xt_reaper_pushed() == before;
  }
  return xt_make_bool(is_free);
}
