#include "prefault.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older kernels refuse it, which costs nothing */
#endif

enum { HUGE_PAGE = 2 << 20, PAGE = 4096, ROOM = 16 };

typedef struct {
  xt_region *region;
  uintptr_t from, to;
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static range waiting[ROOM]; /* a ring */
static unsigned first, count;
static bool running;

/* One huge page at a time: the kernel is not left in the middle of one. */
static bool touch(const range *r) {
  for (uintptr_t at = r->from; at < r->to;) {
    uintptr_t next = (at & ~(uintptr_t)(HUGE_PAGE - 1)) + HUGE_PAGE, to = next < r->to ? next : r->to;
    if (madvise((void *)(at & ~(uintptr_t)(PAGE - 1)), to - (at & ~(uintptr_t)(PAGE - 1)), MADV_POPULATE_WRITE))
      return false;
    at = to;
  }
  return true;
}

static range next(void) {
  pthread_mutex_lock(&lock);
  while (!count) pthread_cond_wait(&change, &lock);
  range r = waiting[first];
  first = (first + 1) % ROOM;
  count--;
  pthread_mutex_unlock(&lock);
  return r;
}

static void *run(void *unused) {
  struct sched_param none = {0};
  /* Wakes of any other thread go to this thread's core as if it were idle. Without that it must not run. */
  bool allowed = !pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
  for (;;) {
    range r = next();
    allowed = allowed && touch(&r);
    xt_region_drop_later(r.region); /* freeing in the idle class could take long */
  }
  return unused;
}

static void start(void) {
  pthread_attr_t attributes;
  pthread_t thread;
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
