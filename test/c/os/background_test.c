#include "core/os/background.h"

#include <time.h>

#include "check.h"

enum { JOBS = 20, STARTED = 1, DROPPED = 10 };

static void sleep_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000l}, NULL); }

static void pause_until_canceled(void *subject, size_t from, size_t to, const atomic_bool *canceled) {
  (void)from, (void)to;
  atomic_store((atomic_int *)subject, STARTED);
  while (!atomic_load(canceled) && xt_background_pause(500000)) {
  }
}

static void count_drop(void *subject) { atomic_fetch_add((atomic_int *)subject, DROPPED); }

/* A job that is canceled during a pause is dropped at once, not when the pause ends; each job is dropped exactly once.
 */
static void a_paused_job_is_canceled_at_once(void) {
  static atomic_int jobs[JOBS];
  int started = 0, at_once = 0;
  for (int i = 0; i < JOBS && !at_once; i++) {
    if (!xt_background_submit((xt_background_job){pause_until_canceled, count_drop, &jobs[i], 0, 0})) continue;
    for (int ms = 0; ms < 100 && !atomic_load(&jobs[i]); ms++) sleep_ms(1);
    started += atomic_load(&jobs[i]);
    sleep_ms(1);
    xt_background_cancel(&jobs[i]);
    at_once += atomic_load(&jobs[i]) == STARTED + DROPPED;
  }
  /* On a busy machine no job may have started: then there is nothing to check. */
  CHECK(at_once || !started);
  sleep_ms(600);
  xt_background_settle(1000);
  for (int i = 0; i < JOBS; i++) CHECK(atomic_load(&jobs[i]) <= STARTED + DROPPED && atomic_load(&jobs[i]) != STARTED);
}

static void each_use_is_switched_alone(void) {
  xt_background_enable(XT_BACKGROUND_checksum, false);
  CHECK(!xt_background_enabled(XT_BACKGROUND_checksum));
  CHECK(xt_background_enabled(XT_BACKGROUND_prefault) && xt_background_enabled(XT_BACKGROUND_block_cache));
  xt_background_enable(XT_BACKGROUND_checksum, true);
  CHECK(xt_background_enabled(XT_BACKGROUND_checksum));
}

int main(void) { return RUN_TESTS("background", a_paused_job_is_canceled_at_once, each_use_is_switched_alone); }
