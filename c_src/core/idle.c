#include "idle.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

enum { ROOM = 16, BREATH_NS = 100000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER, free_hand = PTHREAD_COND_INITIALIZER;
static xt_idle_job waiting[ROOM]; /* a ring */
static unsigned first, count;
static bool running;
static const void *in_hand;
static atomic_bool forgotten; /* what is in hand */

void xt_idle_breathe(void) { nanosleep(&(struct timespec){0, BREATH_NS}, NULL); }

static xt_idle_job next(void) {
  pthread_mutex_lock(&lock);
  while (!count) pthread_cond_wait(&change, &lock);
  xt_idle_job job = waiting[first];
  first = (first + 1) % ROOM;
  count--;
  in_hand = job.subject;
  atomic_store(&forgotten, false);
  pthread_mutex_unlock(&lock);
  return job;
}

static void let_go(xt_idle_job job) {
  job.drop(job.subject);
  pthread_mutex_lock(&lock);
  in_hand = NULL;
  pthread_cond_broadcast(&free_hand);
  pthread_mutex_unlock(&lock);
}

static void *work(void *unused) {
  struct sched_param none = {0};
  /* Wakes of any other thread go to this thread's core as if it were idle. Without that it must not run. */
  bool allowed = !pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
  for (;;) {
    xt_idle_job job = next();
    if (allowed) job.run(job.subject, job.from, job.to, &forgotten);
    let_go(job);
  }
  return unused;
}

static void start(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  running = !pthread_create(&thread, &attributes, work, NULL);
  pthread_attr_destroy(&attributes);
  if (running) pthread_setname_np(thread, "extorch_idle");
}

bool xt_idle_give(xt_idle_job job) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start);
  pthread_mutex_lock(&lock);
  bool taken = running && count < ROOM;
  if (taken) {
    waiting[(first + count++) % ROOM] = job;
    pthread_cond_signal(&change);
  }
  pthread_mutex_unlock(&lock);
  return taken;
}

void xt_idle_forget(const void *subject) {
  xt_idle_job gone[ROOM];
  unsigned n = 0, kept = 0;
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < count; i++) {
    xt_idle_job job = waiting[(first + i) % ROOM];
    if (job.subject == subject) gone[n++] = job;
    else waiting[(first + kept++) % ROOM] = job;
  }
  count = kept;
  if (in_hand == subject) atomic_store(&forgotten, true);
  pthread_mutex_unlock(&lock);
  while (n--) gone[n].drop(gone[n].subject);
}

void xt_idle_settle(int timeout_ms) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += timeout_ms / 1000;
  until.tv_nsec += timeout_ms % 1000 * 1000000l;
  if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
  pthread_mutex_lock(&lock);
  while (in_hand && atomic_load(&forgotten) && !pthread_cond_timedwait(&free_hand, &lock, &until)) {
  }
  pthread_mutex_unlock(&lock);
}
