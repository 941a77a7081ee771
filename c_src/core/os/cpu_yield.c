#include "core/os/cpu_yield.h"

#include "core/os/thread.h"

#ifdef __linux__

#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "core/os/clock.h"

enum {
  UNCONTENDED_NS = 3000,      /* sched_yield takes less than this if no other thread is waiting for the CPU */
  MOVE_INTERVAL_NS = 1000000, /* minimum time between two moves: each one loses the contents of the caches */
  SHARE = 4,                  /* other threads get at most one in SHARE parts of this thread's time by its yielding */
  BURST_NS = 5000000,         /* plus this much at once, so that the thread keeps yielding after one long wait */
  MAX_CPUS = 8                /* with more CPUs the kernel finds an idle one that is near by itself */
};

static _Thread_local int64_t balanced_at; /* the time at which others have had no more than their share */
static _Thread_local int64_t next_move;   /* the earliest time of the next move */

/* Restores the affinity mask. If the thread was allowed on all CPUs it must also be allowed on CPUs that are added
 * later, so a mask of all CPUs is tried first. */
static void restore_affinity(const cpu_set_t *allowed) {
  cpu_set_t all, actual;
  memset(&all, 0xff, sizeof all);
  if (sched_setaffinity(0, sizeof all, &all) || sched_getaffinity(0, sizeof actual, &actual) ||
      !CPU_EQUAL(&actual, allowed))
    sched_setaffinity(0, sizeof *allowed, allowed);
}

/* Moves the thread to another CPU that it is allowed to run on. The affinity mask is the same afterwards. */
static void change_cpu(void) {
  cpu_set_t allowed, others;
  int cpu = sched_getcpu();
  if (cpu < 0 || sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) > MAX_CPUS) return;
  others = allowed;
  CPU_CLR((unsigned)cpu, &others);
  if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others)) restore_affinity(&allowed);
}

void xt_cpu_yield(void) {
  int64_t before = xt_clock_ns();
  if (balanced_at > before + SHARE * (int64_t)BURST_NS) return;
  xt_thread_yield();
  int64_t after = xt_clock_ns();
  if (after - before < UNCONTENDED_NS) return;
  balanced_at = (balanced_at > before ? balanced_at : before) + SHARE * (after - before);
  if (after < next_move) return;
  change_cpu();
  next_move = after + MOVE_INTERVAL_NS;
}

#else /* other systems do not let a thread choose its CPU */

void xt_cpu_yield(void) { xt_thread_yield(); }

#endif
