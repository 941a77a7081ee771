#include "prefault.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "memory.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older kernels refuse it, which costs nothing */
#endif

enum { HUGE_PAGE = 2 << 20, ROOM = 16 };

/* The thread frees it: after stop nobody else looks at it. */
struct xt_prefault {
  pthread_mutex_t lock;
  pthread_cond_t change;
  xt_region *waiting[ROOM]; /* a ring */
  unsigned first, count;
  bool stopped;
};

static bool is_stopped(xt_prefault *p) {
  pthread_mutex_lock(&p->lock);
  bool stopped = p->stopped;
  pthread_mutex_unlock(&p->lock);
  return stopped;
}

/* One huge page at a time: the kernel is not left in the middle of one. */
static bool touch(xt_prefault *p, const xt_region *region) {
  uintptr_t at = (uintptr_t)region->data & ~(uintptr_t)(HUGE_PAGE - 1), end = (uintptr_t)region->data + region->size;
  for (; at < end; at += HUGE_PAGE) {
    uintptr_t from = at > (uintptr_t)region->data ? at : (uintptr_t)region->data & ~(uintptr_t)4095;
    uintptr_t to = end - at > HUGE_PAGE ? at + HUGE_PAGE : end;
    if (is_stopped(p) || madvise((void *)from, to - from, MADV_POPULATE_WRITE)) return false;
  }
  return true;
}

static xt_region *next(xt_prefault *p) {
  xt_region *region = NULL;
  pthread_mutex_lock(&p->lock);
  while (!p->count && !p->stopped) pthread_cond_wait(&p->change, &p->lock);
  if (!p->stopped) {
    region = p->waiting[p->first];
    p->first = (p->first + 1) % ROOM;
    p->count--;
  }
  pthread_mutex_unlock(&p->lock);
  return region;
}

static void *run(void *object) {
  xt_prefault *p = object;
  struct sched_param none = {0};
  /* Wakes of any other thread go to this thread's core as if it were idle. Without that it must not run. */
  bool allowed = !pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
  for (xt_region *region; (region = next(p)); xt_region_drop(region)) allowed = allowed && touch(p, region);
  while (p->count--) xt_region_drop(p->waiting[p->first++ % ROOM]);
  pthread_cond_destroy(&p->change);
  pthread_mutex_destroy(&p->lock);
  free(p);
  atomic_fetch_sub(&xt_memory_live.threads, 1);
  return NULL;
}

xt_prefault *xt_prefault_start(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  xt_prefault *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->change, NULL);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  atomic_fetch_add(&xt_memory_live.threads, 1);
  bool started = !pthread_create(&thread, &attributes, run, p);
  pthread_attr_destroy(&attributes);
  if (started) return p;
  atomic_fetch_sub(&xt_memory_live.threads, 1);
  free(p);
  return NULL;
}

void xt_prefault_add(xt_prefault *p, xt_region *region) {
  if (!p) return;
  pthread_mutex_lock(&p->lock);
  if (p->count < ROOM) {
    p->waiting[(p->first + p->count++) % ROOM] = xt_region_keep(region);
    pthread_cond_signal(&p->change);
  }
  pthread_mutex_unlock(&p->lock);
}

void xt_prefault_stop(xt_prefault *p) {
  if (!p) return;
  pthread_mutex_lock(&p->lock);
  p->stopped = true;
  pthread_cond_signal(&p->change);
  pthread_mutex_unlock(&p->lock);
}
