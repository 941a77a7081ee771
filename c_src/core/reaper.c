#include "reaper.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "spare.h"

/* States of the thread:  idle --push--> busy --queue empty--> idle;  any --halt--> halted.
 *
 * The queue is a lock-free stack: pushers only swing `top`. Whoever finds it empty wakes the thread; the mutex
 * guards only sleeping and waiting, never the queue. */
enum { SPARED_MS = 500 };

static _Atomic(xt_reapable *) top;
static atomic_uint_least64_t pushed, done; /* `done` goes on when all that was taken at once is freed: what was pushed
                                            * later cannot be counted for what was pushed before */
static atomic_int waiting;                 /* calls in drain */
static atomic_bool halting;
static atomic_bool spared; /* blocks, which are to be given back */
static bool halted;
static bool started;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work, progress;

static struct timespec deadline(int timeout_ms) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  at.tv_sec += timeout_ms / 1000;
  at.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
  if (at.tv_nsec >= 1000000000) at.tv_sec++, at.tv_nsec -= 1000000000;
  return at;
}

/* ---- The thread ---- */

static struct timespec age_at; /* when spare blocks grow older; set while `counting` */
static bool counting;

static void count_age(void) {
  if (counting || !atomic_load(&spared)) return;
  counting = true;
  age_at = deadline(SPARED_MS);
}

static void age_spares(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!counting || now.tv_sec < age_at.tv_sec || (now.tv_sec == age_at.tv_sec && now.tv_nsec < age_at.tv_nsec)) return;
  counting = false;
  atomic_store(&spared, false);
  if (xt_spare_age()) atomic_store(&spared, true);
}

/* Until there is something to free, or spare blocks grow older. */
static void rest(void) {
  bool late = false;
  pthread_mutex_lock(&lock);
  if (atomic_load(&halting)) halted = true;
  pthread_cond_broadcast(&progress);
  while (halted || (!late && !atomic_load(&top) && !atomic_load(&halting))) {
    count_age();
    if (halted || !counting) pthread_cond_wait(&work, &lock);
    else late = pthread_cond_timedwait(&work, &lock, &age_at) == ETIMEDOUT;
  }
  pthread_mutex_unlock(&lock);
}

static void *reap(void *unused) {
  (void)unused;
  for (;;) {
    xt_reapable *item = atomic_exchange(&top, NULL);
    if (!item || atomic_load(&halting)) rest();
    age_spares();
    uint64_t freed = 0;
    while (item) {
      xt_reapable *next = item->next;
      item->run(item);
      freed++;
      item = atomic_load(&halting) ? NULL : next;
    }
    atomic_fetch_add(&done, freed);
    if (atomic_load(&waiting)) { /* else nobody would hear it, and pushers want the lock */
      pthread_mutex_lock(&lock);
      pthread_cond_broadcast(&progress);
      pthread_mutex_unlock(&lock);
    }
  }
  return NULL;
}

static void start(void) {
  pthread_condattr_t monotonic;
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&work, &monotonic);
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

void xt_reaper_push(xt_reapable *item) {
  xt_reapable *old = atomic_load(&top);
  atomic_fetch_add(&pushed, 1);
  do item->next = old;
  while (!atomic_compare_exchange_weak(&top, &old, item));
  if (!old) {
    /* The lock orders this wake-up after the thread's last look at an empty queue. It is held only for that look,
     * never while something is freed. */
    pthread_mutex_lock(&lock);
    pthread_cond_signal(&work);
    pthread_mutex_unlock(&lock);
  }
}

uint64_t xt_reaper_pushed(void) { return atomic_load(&pushed); }

void xt_reaper_wake(void) {
  if (atomic_exchange(&spared, true)) return;
  pthread_mutex_lock(&lock);
  pthread_cond_signal(&work);
  pthread_mutex_unlock(&lock);
}

bool xt_reaper_drain(int timeout_ms) {
  uint64_t goal = atomic_load(&pushed);
  struct timespec until = deadline(timeout_ms);
  int late = 0;
  atomic_fetch_add(&waiting, 1);
  pthread_mutex_lock(&lock);
  while (atomic_load(&done) < goal && !late) late = pthread_cond_timedwait(&progress, &lock, &until) == ETIMEDOUT;
  pthread_mutex_unlock(&lock);
  atomic_fetch_sub(&waiting, 1);
  return atomic_load(&done) >= goal;
}

bool xt_reaper_halt(int timeout_ms) {
  struct timespec until = deadline(timeout_ms);
  int late = 0;
  atomic_store(&halting, true);
  pthread_mutex_lock(&lock);
  pthread_cond_signal(&work);
  while (started && !halted && !late) late = pthread_cond_timedwait(&progress, &lock, &until) == ETIMEDOUT;
  pthread_mutex_unlock(&lock);
  return !started || halted;
}
