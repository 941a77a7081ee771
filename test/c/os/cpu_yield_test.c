#include "core/os/cpu_yield.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "check.h"

static void pin_to_core(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET((unsigned)core, &one);
  CHECK(!sched_setaffinity(0, sizeof one, &one));
}

typedef struct {
  int core;
  atomic_bool stop;
} spinner;

/* Yields in a loop, as a scheduler of the VM does while it looks for work. */
static void *spin(void *argument) {
  spinner *s = argument;
  pin_to_core(s->core);
  while (!atomic_load(&s->stop)) sched_yield();
  return NULL;
}

static int64_t nanoseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* A job moves away from a core that another thread waits for, and keeps the set of cores it may run on. */
static void leaves_a_core_that_is_in_use(void) {
  cpu_set_t before, after;
  if (sched_getaffinity(0, sizeof before, &before)) return; /* more cores than a cpu_set_t holds */
  spinner spinner = {sched_getcpu(), false};
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, spin, &spinner));
  pin_to_core(spinner.core);
  CHECK(!sched_setaffinity(0, sizeof before, &before));
  /* The kernel separates the two as well, but only after hundreds of switches. */
  bool can_move = CPU_COUNT(&before) > 1 && CPU_COUNT(&before) <= 8;
  for (int switches = 0; can_move && sched_getcpu() == spinner.core;) {
    int64_t start = nanoseconds();
    xt_cpu_yield();
    switches += nanoseconds() - start > 10000;
    CHECK(switches < 10);
  }
  atomic_store(&spinner.stop, true);
  pthread_join(thread, NULL);
  for (int i = 0; i < 1000; i++) xt_cpu_yield();
  CHECK(!sched_getaffinity(0, sizeof after, &after) && CPU_EQUAL(&before, &after));
}

int main(void) { return RUN_TESTS("cpu_yield", leaves_a_core_that_is_in_use); }
