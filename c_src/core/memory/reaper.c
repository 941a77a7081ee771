#include "core/memory/reaper.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

enum { TICK_MS = 500 };

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
static sem_t available; /* posted when the thread has something to do */
static atomic_uint_least64_t pushed;
static atomic_uint_least64_t done; /* updated after a whole batch is freed: later items are freed first, and would
                                    * otherwise be counted instead of earlier ones */
static _Atomic(bool (*)(void)) tick;
static atomic_bool halting;
static atomic_int waiting; /* calls of xt_reaper_drain */
static bool halted;
static bool started;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress;

static struct timespec deadline(clockid_t clock, int timeout_ms) {
  struct timespec at;
  clock_gettime(clock, &at);
  at.tv_sec += timeout_ms / 1000;
  at.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
  if (at.tv_nsec >= 1000000000) at.tv_sec++, at.tv_nsec -= 1000000000;
  return at;
}

/* ---- The thread ---- */

static void notify_waiters(void) {
  pthread_mutex_lock(&lock);
  if (atomic_load(&halting)) halted = true;
  pthread_cond_broadcast(&progress);
  pthread_mutex_unlock(&lock);
}

/* Waits until there is something to free or the tick is due. */
static void wait_for_work(const struct timespec *tick_at) {
  struct timespec until = deadline(CLOCK_REALTIME, TICK_MS); /* setting the clock only shifts the tick */
  if (atomic_load(&tick) && tick_at->tv_sec) sem_timedwait(&available, &until);
  else sem_wait(&available);
}

/* Calls the tick function when it is due, even if the queue is never empty. */
static void tick_if_due(struct timespec *at) {
  struct timespec now;
  bool (*call)(void) = atomic_load(&tick);
  if (!call) return;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!at->tv_sec) *at = deadline(CLOCK_MONOTONIC, TICK_MS);
  if (now.tv_sec < at->tv_sec || (now.tv_sec == at->tv_sec && now.tv_nsec < at->tv_nsec)) return;
  at->tv_sec = 0;
  atomic_store(&tick, NULL);
  if (call()) xt_reaper_tick(call);
}

static void *reap(void *unused) {
  struct timespec tick_at = {0, 0};
  (void)unused;
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
    while (atomic_load(&halting)) pause();
    tick_if_due(&tick_at);
    if (!atomic_load(&top)) wait_for_work(&tick_at);
  }
  return NULL;
}

static void start(void) {
  pthread_condattr_t monotonic;
  pthread_attr_t attributes;
  pthread_t thread;
  if (sem_init(&available, 0, 0)) return;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&progress, &monotonic);
  pthread_condattr_destroy(&monotonic);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  started = !pthread_create(&thread, &attributes, reap, NULL);
  pthread_attr_destroy(&attributes);
  if (started) pthread_setname_np(thread, "extorch_reaper");
}

bool xt_reaper_start(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start);
  return started;
}

/* ---- Other threads ---- */

void xt_reaper_push(xt_reapable *item) {
  xt_reapable *old = atomic_load(&top);
  atomic_fetch_add(&pushed, 1);
  do item->next = old;
  while (!atomic_compare_exchange_weak(&top, &old, item));
  if (!old) sem_post(&available);
}

uint64_t xt_reaper_pushed(void) { return atomic_load(&pushed); }

void xt_reaper_tick(bool (*call)(void)) {
  if (!atomic_exchange(&tick, call)) sem_post(&available);
}

/* Waits for a condition. The lock must be held. */
static void wait_until(bool (*condition)(uint64_t goal), uint64_t goal, int timeout_ms) {
  struct timespec until = deadline(CLOCK_MONOTONIC, timeout_ms);
  bool timed_out = false;
  while (!condition(goal) && !timed_out) timed_out = pthread_cond_timedwait(&progress, &lock, &until) == ETIMEDOUT;
}

static bool is_done(uint64_t goal) { return atomic_load(&done) >= goal; }
static bool is_halted(uint64_t unused) { return (void)unused, !started || halted; }

bool xt_reaper_drain(int timeout_ms) {
  uint64_t goal = atomic_load(&pushed);
  atomic_fetch_add(&waiting, 1);
  pthread_mutex_lock(&lock);
  wait_until(is_done, goal, timeout_ms);
  pthread_mutex_unlock(&lock);
  atomic_fetch_sub(&waiting, 1);
  return is_done(goal);
}

bool xt_reaper_halt(int timeout_ms) {
  atomic_store(&halting, true);
  if (started) sem_post(&available);
  pthread_mutex_lock(&lock);
  wait_until(is_halted, 0, timeout_ms);
  pthread_mutex_unlock(&lock);
  return is_halted(0);
}
