/* Work that several threads share. */
#include "core/memory/parallel.h"

#include "check.h"
#include "core/memory/memory.h"
#include "core/os/thread.h"
#include "faults.h"

enum { JOBS = 1000, BYTES = 100 };

typedef struct {
  atomic_int next, callers, helpers;
  atomic_int done[JOBS];
} counted;

static void work(void *context, bool is_helper) {
  counted *c = context;
  atomic_fetch_add(is_helper ? &c->helpers : &c->callers, 1);
  if (is_helper) CHECK(atomic_load(&xt_memory_live.threads) > 0 && xt_parallel_helpers() > 0);
  for (int i; (i = atomic_fetch_add(&c->next, 1)) < JOBS; xt_thread_yield()) {
    void *block = xt_memory_alloc(BYTES);
    CHECK(block);
    xt_memory_free(block);
    atomic_fetch_add(&c->done[i], 1);
  }
}

static int run(unsigned threads) {
  static counted c;
  c = (counted){0};
  xt_memory_taken();
  xt_parallel_run(threads, work, &c);
  for (int i = 0; i < JOBS; i++) CHECK(atomic_load(&c.done[i]) == 1);
  CHECK(atomic_load(&c.callers) == 1);
  CHECK(xt_memory_taken() == JOBS * BYTES); /* also what helpers have allocated */
  CHECK(!atomic_load(&xt_memory_live.threads) && !xt_parallel_helpers() && !atomic_load(&xt_memory_live.bytes));
  return atomic_load(&c.helpers);
}

static void threads_share_the_work(void) {
  CHECK(run(0) == 0 && run(1) == 0 && run(2) == 1 && run(8) == 7);
  CHECK(run(10000) == XT_MAX_THREADS);
}

static void refused_threads_are_not_needed(void) {
  for (int at = 0; at < 4; at++) {
    fault_calls = 0, fault_at = at;
    CHECK(run(4) == (at < 3 ? at : 3));
  }
  fault_at = -1;
}

static void outer(void *context, bool is_helper) {
  (void)is_helper;
  xt_parallel_run(XT_MAX_THREADS, work, context);
}

static void calls_share_a_limit(void) {
  static counted c;
  xt_parallel_run(8, outer, &c);
  for (int i = 0; i < JOBS; i++) CHECK(atomic_load(&c.done[i]) == 1);
  CHECK(!xt_parallel_helpers());
}

int main(void) {
  return RUN_TESTS("parallel", threads_share_the_work, refused_threads_are_not_needed, calls_share_a_limit);
}
