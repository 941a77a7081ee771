#include "core/os/cpu_yield.h"

#include <stdint.h>

#include "core/os/clock.h"
#include "core/os/thread.h"

enum { UNCONTENDED_NS = 3000 }; /* sched_yield takes less than this if no other thread is waiting for the CPU */

static _Thread_local int64_t balanced_at; /* the time at which others have had no more than their share */

void xt_cpu_yield(void) {
  int64_t before = xt_clock_ns();
  if (balanced_at > before + XT_CPU_YIELD_SHARE * (int64_t)XT_CPU_YIELD_BURST_NS) return;
  xt_thread_yield();
  int64_t waited = xt_clock_ns() - before;
  if (waited < UNCONTENDED_NS) return;
  balanced_at = (balanced_at > before ? balanced_at : before) + XT_CPU_YIELD_SHARE * waited;
}
