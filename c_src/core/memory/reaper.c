#include "core/memory/reaper.h"

#include <stdatomic.h>
#include <stddef.h>

#include "core/os/clock.h"
#include "core/os/exit_guard.h"
#include "core/os/semaphore.h"
#include "core/os/thread.h"

enum { TICK_MS = 500, NS_PER_MS = 1000000, HALT_SLEEP_US = 100000 };

/* The states of the thread:
 *
 *   idle → busy      push
 *   busy → idle      the queue is empty
 *   any → halted     halt
 *
 * The queue is a lock-free stack: a push only exchanges `top`, and posts the semaphore if the stack was empty. The
 * mutex is used only by threads that wait for progress. A pusher never takes it, because it may be suspended at any
 * point. */
static _Atomic(xt_reapable *) top;
static xt_semaphore available; /* posted when the thread has something to do */
static atomic_uint_least64_t pushed;
static atomic_uint_least64_t done; /* updated after a whole batch is freed: later items are freed first, and would
                                    * otherwise be counted instead of earlier ones */
static _Atomic(bool (*)(void)) ticks[XT_TICKS];
static atomic_bool halting;
static atomic_int waiting; /* calls of xt_reaper_drain */
static bool halted;
static bool started;
static xt_mutex lock = XT_MUTEX_INIT;
static xt_condition progress;

/* ---- The thread ---- */

static void notify_waiters(void) {
  xt_mutex_lock(&lock);
  if (atomic_load(&halting)) halted = true;
  xt_condition_broadcast(&progress);
  xt_mutex_unlock(&lock);
}

/* Waits until there is something to free or the tick may be due. */
static void wait_for_work(bool tick_pending) {
  if (tick_pending) xt_semaphore_wait_ms(&available, TICK_MS);
  else xt_semaphore_wait(&available);
}

static bool is_tick_pending(void) {
  for (int i = 0; i < XT_TICKS; i++)
    if (atomic_load(&ticks[i])) return true;
  return false;
}

/* Calls the tick functions when they are due, even if the queue is never empty. *at is the time of the next call, or
 * 0. */
static void tick_if_due(int64_t *at) {
  if (!is_tick_pending()) return;
  int64_t now = xt_clock_ns();
  if (!*at) *at = now + TICK_MS * NS_PER_MS;
  if (now < *at) return;
  *at = 0;
  for (int i = 0; i < XT_TICKS; i++) {
    bool (*call)(void) = atomic_exchange(&ticks[i], NULL);
    if (call && call()) xt_reaper_tick(i, call);
  }
}

static void *reap(void *unused) {
  int64_t tick_at = 0;
  xt_thread_set_name("extorch_reaper");
  for (;;) {
    xt_reapable *item = atomic_load(&halting) ? NULL : atomic_exchange(&top, NULL);
    uint64_t freed = 0;
    while (item) {
      xt_reapable *next = item->next;
      item->run(item);
      freed++;
      item = atomic_load(&halting) ? NULL : next;
    }
    atomic_fetch_add(&done, freed);
    if (atomic_load(&halting) || atomic_load(&waiting)) notify_waiters();
    while (atomic_load(&halting)) xt_clock_sleep_us(HALT_SLEEP_US);
    tick_if_due(&tick_at);
    if (!atomic_load(&top)) wait_for_work(tick_at && is_tick_pending());
  }
  return unused;
}

static void start(void) {
  xt_condition_init(&progress);
  xt_exit_guard_at_halt(xt_reaper_halt);
  started = xt_semaphore_init(&available) && xt_thread_start(reap, NULL);
}

bool xt_reaper_start(void) {
  static xt_once once = XT_ONCE_INIT;
  xt_once_run(&once, start);
  return started;
}

/* ---- Other threads ---- */

void xt_reaper_push(xt_reapable *item) {
  xt_reapable *old = atomic_load(&top);
  atomic_fetch_add(&pushed, 1);
  do item->next = old;
  while (!atomic_compare_exchange_weak(&top, &old, item));
  if (!old) xt_semaphore_post(&available);
}

uint64_t xt_reaper_pushed(void) { return atomic_load(&pushed); }

void xt_reaper_tick(xt_tick tick, bool (*call)(void)) {
  if (!atomic_exchange(&ticks[tick], call)) xt_semaphore_post(&available);
}

/* Waits for a condition. The lock must be held. */
static void wait_until(bool (*condition)(uint64_t goal), uint64_t goal, int timeout_ms) {
  int64_t deadline = xt_clock_ns() + (int64_t)timeout_ms * NS_PER_MS;
  bool timed_out = false;
  while (!condition(goal) && !timed_out) timed_out = !xt_condition_wait_until(&progress, &lock, deadline);
}

static bool is_done(uint64_t goal) { return atomic_load(&done) >= goal; }
static bool is_halted(uint64_t unused) { return (void)unused, !started || halted; }

bool xt_reaper_drain(int timeout_ms) {
  uint64_t goal = atomic_load(&pushed);
  atomic_fetch_add(&waiting, 1);
  xt_mutex_lock(&lock);
  wait_until(is_done, goal, timeout_ms);
  xt_mutex_unlock(&lock);
  atomic_fetch_sub(&waiting, 1);
  return is_done(goal);
}

bool xt_reaper_halt(int timeout_ms) {
  atomic_store(&halting, true);
  if (started) xt_semaphore_post(&available);
  xt_mutex_lock(&lock);
  wait_until(is_halted, 0, timeout_ms);
  xt_mutex_unlock(&lock);
  return is_halted(0);
}
