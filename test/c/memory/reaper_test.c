#include "core/memory/reaper.h"

#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

enum { THREADS = 4, ITEMS = 10000 };

typedef struct {
  xt_reapable reapable; /* first */
  int value;
} item;

static atomic_int reaped;

static void reap_item(xt_reapable *self) {
  atomic_fetch_add(&reaped, ((item *)self)->value);
  free(self);
}

static void *push_items(void *unused) {
  (void)unused;
  for (int i = 0; i < ITEMS; i++) {
    item *one = malloc(sizeof *one);
    *one = (item){{NULL, reap_item}, 1};
    xt_reaper_push(&one->reapable);
  }
  return NULL;
}

static void starts_once(void) {
  CHECK(xt_reaper_start() && xt_reaper_start());
  CHECK(xt_reaper_drain(10000));
  CHECK(xt_reaper_drain(0));
}

static void frees_everything_that_several_threads_push(void) {
  pthread_t threads[THREADS];
  uint64_t before = xt_reaper_pushed();
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, push_items, NULL));
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  CHECK(xt_reaper_drain(10000));
  CHECK(atomic_load(&reaped) == THREADS * ITEMS);
  CHECK(xt_reaper_pushed() - before == THREADS * ITEMS);
}

int main(void) { return RUN_TESTS("reaper", starts_once, frees_everything_that_several_threads_push); }
