#include "core/os/cpu_yield.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "core/os/clock.h"

enum { CONTENDED_NS = 10000, RUN_NS = 300000000, WORK_NS = 20000, SLACK_NS = 2000000 };

static atomic_bool stop;

/* Uses the CPU of the thread that started it, without ever yielding. */
static void *spin(void *unused) {
  while (!atomic_load(&stop)) continue;
  return unused;
}

static void work(void) {
  int64_t start = xt_clock_ns();
  while (xt_clock_ns() - start < WORK_NS) continue;
}

/* Beside a thread that wants the same CPU, a job that yields gives away its share of the time and no more, and the set
 * of CPUs that it may run on does not change. */
static void others_get_their_share(void) {
  cpu_set_t before, one, after;
  pthread_t thread;
  if (sched_getaffinity(0, sizeof before, &before)) return; /* more CPUs than a cpu_set_t holds */
  CPU_ZERO(&one);
  CPU_SET((unsigned)sched_getcpu(), &one);
  CHECK(!sched_setaffinity(0, sizeof one, &one));
  CHECK(!pthread_create(&thread, NULL, spin, NULL));
  int64_t start = xt_clock_ns(), waited = 0, longest = 0, elapsed;
  while ((elapsed = xt_clock_ns() - start) < RUN_NS) {
    work();
    int64_t yield_at = xt_clock_ns();
    xt_cpu_yield();
    int64_t wait = xt_clock_ns() - yield_at;
    if (wait < CONTENDED_NS) continue;
    waited += wait;
    longest = wait > longest ? wait : longest;
  }
  atomic_store(&stop, true);
  pthread_join(thread, NULL);
  CHECK(waited > 0);
  CHECK(waited - longest <= elapsed / XT_CPU_YIELD_SHARE + XT_CPU_YIELD_BURST_NS + SLACK_NS);
  CHECK(!sched_getaffinity(0, sizeof after, &after) && CPU_EQUAL(&one, &after));
  CHECK(!sched_setaffinity(0, sizeof before, &before));
}

int main(void) { return RUN_TESTS("cpu_yield", others_get_their_share); }
