#include "prefault.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, ROOM = 16, BREATH_NS = 100000 };

typedef struct {
  xt_region *region;
  uintptr_t from, to;
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER, free_hand = PTHREAD_COND_INITIALIZER;
static range waiting[ROOM]; /* a ring */
static unsigned first, count;
static bool running;
static const xt_region *in_hand;
static atomic_bool forgotten; /* what is in hand */

/* A write that changes nothing, and that loses no byte which is copied there at the same moment. An ordinary fault,
 * unlike madvise, is short, and holds no lock of the address space where the kernel has locks for its parts: this
 * thread may be put aside in the middle of it for as long as others want the core. */
static void touch(const range *r) {
  for (uintptr_t at = r->from; at < r->to && !atomic_load_explicit(&forgotten, memory_order_relaxed);) {
    __atomic_fetch_or((unsigned char *)at, 0, __ATOMIC_RELAXED);
    at = (at & ~(uintptr_t)(PAGE - 1)) + PAGE;
    /* With all cores busy everybody's timers come late, on virtual machines most of all. */
    if (at % HUGE_PAGE == 0) nanosleep(&(struct timespec){0, BREATH_NS}, NULL);
  }
}

/* Linux has such locks since 6.4. */
static bool faults_alone(void) {
  struct utsname system;
  int major = 0, minor = 0;
  if (uname(&system) || sscanf(system.release, "%d.%d", &major, &minor) != 2) return false;
  return !strcmp(system.sysname, "Linux") && (major > 6 || (major == 6 && minor >= 4));
}

static range next(void) {
  pthread_mutex_lock(&lock);
  while (!count) pthread_cond_wait(&change, &lock);
  range r = waiting[first];
  first = (first + 1) % ROOM;
  count--;
  in_hand = r.region;
  atomic_store(&forgotten, false);
  pthread_mutex_unlock(&lock);
  return r;
}

static void let_go(range r) {
  xt_region_drop_later(r.region); /* freeing in the idle class could take long */
  pthread_mutex_lock(&lock);
  in_hand = NULL;
  pthread_cond_broadcast(&free_hand);
  pthread_mutex_unlock(&lock);
}

static void *run(void *unused) {
  struct sched_param none = {0};
  /* Wakes of any other thread go to this thread's core as if it were idle. Without that it must not run. */
  bool allowed = !pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
  for (;;) {
    range r = next();
    if (allowed) touch(&r);
    let_go(r);
  }
  return unused;
}

static void start(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  if (!faults_alone()) return;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  running = !pthread_create(&thread, &attributes, run, NULL);
  pthread_attr_destroy(&attributes);
}

void xt_prefault(xt_region *region, size_t from, size_t to) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start);
  pthread_mutex_lock(&lock);
  if (running && count < ROOM) {
    uintptr_t data = (uintptr_t)region->data;
    waiting[(first + count++) % ROOM] = (range){xt_region_keep(region), data + from, data + to};
    pthread_cond_signal(&change);
  }
  pthread_mutex_unlock(&lock);
}

void xt_prefault_forget(const xt_region *region) {
  xt_region *gone[ROOM];
  unsigned n = 0, kept = 0;
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < count; i++) {
    range r = waiting[(first + i) % ROOM];
    if (r.region == region) gone[n++] = r.region;
    else waiting[(first + kept++) % ROOM] = r;
  }
  count = kept;
  if (in_hand == region) atomic_store(&forgotten, true);
  pthread_mutex_unlock(&lock);
  while (n--) xt_region_drop_later(gone[n]);
}

void xt_prefault_settle(int timeout_ms) {
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
