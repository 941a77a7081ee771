#include "core/os/cpu_yield.h"

#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum {
  NOBODY_NS = 3000,  /* giving up the core takes less than this when nobody wants it */
  STAY_NS = 1000000, /* between two moves: each costs the caches */
  SHARE = 4, /* others get at most one part in so many of a thread's time this way: its jobs have to end as well */
  BURST_NS = 5000000, /* except so much at once: after one long guest of the core the next is as welcome */
  FEW_CORES = 8       /* with more of them the kernel finds a free one by itself, and knows which one is near */
};

static _Thread_local uint64_t even;      /* then others had no more than their share */
static _Thread_local uint64_t next_move; /* not before then */

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* A thread without a mask of its own may have all that the machine has, also what it gets later. */
static void allow(const cpu_set_t *allowed) {
  cpu_set_t all, seen;
  memset(&all, 0xff, sizeof all);
  if (sched_setaffinity(0, sizeof all, &all) || sched_getaffinity(0, sizeof seen, &seen) || !CPU_EQUAL(&seen, allowed))
    sched_setaffinity(0, sizeof *allowed, allowed);
}

/* To another core that the thread may run on; it may run where it could before. */
static void move(void) {
  cpu_set_t allowed, others;
  int core = sched_getcpu();
  if (core < 0 || sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) > FEW_CORES) return;
  others = allowed;
  CPU_CLR((unsigned)core, &others);
  if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others)) allow(&allowed);
}

void xt_cpu_yield(void) {
  uint64_t before = now();
  if (even > before + SHARE * (uint64_t)BURST_NS) return;
  sched_yield();
  uint64_t after = now();
  if (after - before < NOBODY_NS) return;
  even = (even > before ? even : before) + SHARE * (after - before);
  if (after < next_move) return;
  move();
  next_move = after + STAY_NS;
}
