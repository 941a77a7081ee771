#include "core/memory/parallel.h"

#include "core/memory/memory.h"
#include "core/os/thread.h"

enum { MAX_HELPERS = 128 }; /* of all calls together */

typedef struct {
  void (*work)(void *context, bool is_helper);
  void *context;
  atomic_int_least64_t taken;
} call;

static atomic_uint running;

unsigned xt_parallel_helpers(void) { return atomic_load(&running); }

static void *help(void *argument) {
  call *c = argument;
  xt_thread_set_name("extorch_help");
  c->work(c->context, true);
  atomic_fetch_add(&c->taken, xt_memory_taken());
  return NULL;
}

static void end(unsigned count) {
  atomic_fetch_sub(&running, count);
  atomic_fetch_sub(&xt_memory_live.threads, count);
}

static bool start(xt_thread *thread, call *c) {
  atomic_fetch_add(&xt_memory_live.threads, 1);
  if (atomic_fetch_add(&running, 1) < MAX_HELPERS && xt_thread_start_joinable(thread, help, c)) return true;
  end(1);
  return false;
}

void xt_parallel_run(unsigned threads, void (*work)(void *context, bool is_helper), void *context) {
  xt_thread helpers[XT_MAX_THREADS];
  call c = {.work = work, .context = context};
  unsigned count = 0;
  while (count + 1 < threads && count < XT_MAX_THREADS && start(&helpers[count], &c)) count++;
  work(context, false);
  for (unsigned i = 0; i < count; i++) xt_thread_join(helpers[i]);
  end(count);
  xt_memory_take(atomic_load(&c.taken));
}
