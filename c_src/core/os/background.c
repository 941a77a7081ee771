#include "core/os/background.h"

#include <stdint.h>

#include "core/os/clock.h"
#include "core/os/semaphore.h"
#include "core/os/thread.h"

#ifdef __linux__
#include <sched.h>
#include <stdio.h>
#include <sys/utsname.h>
#endif

static atomic_bool turned_off[XT_BACKGROUND_COUNT];

bool xt_background_enabled(xt_background_use use) { return !atomic_load(&turned_off[use]); }

void xt_background_enable(xt_background_use use, bool on) { atomic_store(&turned_off[use], !on); }

enum { SLOTS = 16 };

/* The states of a slot:
 *
 *   free → claimed → queued      submit
 *   queued → running ⇄ paused    the thread
 *   running → free               the thread, when the job is done
 *   queued → claimed → free      cancel
 *   paused → claimed → free      cancel
 *
 * There are no locks: the thread may be suspended at any point, and threads that wait for its lock would be suspended
 * too. It may also be suspended in a pause, for a long time if all CPUs are busy, so a paused job can be taken away
 * from it.
 */
enum { FREE, CLAIMED, QUEUED, RUNNING, PAUSED };

typedef struct {
  atomic_int state;
  atomic_bool cancelled;
  _Atomic(const void *) subject; /* of the job; read by other threads in any state */
  atomic_uint_least64_t number;  /* the job with the lowest number is the oldest */
  xt_background_job job;
} slot;

static slot slots[SLOTS];
static atomic_uint_least64_t next_number;
static xt_semaphore submitted;
static bool running;
static slot *current; /* used by the thread only: the running job, NULL after it was taken away */

static bool change(slot *s, int from, int to) { return atomic_compare_exchange_strong(&s->state, &from, to); }

static void finish(slot *s) {
  s->job.drop(s->job.subject);
  atomic_store(&s->subject, NULL);
  atomic_store(&s->state, FREE);
}

static slot *oldest(void) {
  slot *found = NULL;
  for (int i = 0; i < SLOTS; i++)
    if (atomic_load(&slots[i].state) == QUEUED &&
        (!found || atomic_load(&slots[i].number) < atomic_load(&found->number)))
      found = &slots[i];
  return found;
}

/* ---- The system ---- */

#ifdef __linux__

/* The jobs fault pages in. Before Linux 6.4 a page fault takes a lock of the whole address space, which a suspended
 * thread would hold for a long time. */
static bool is_supported(void) {
  struct utsname system;
  int major = 0, minor = 0;
  if (uname(&system) || sscanf(system.release, "%d.%d", &major, &minor) != 2) return false;
  return major > 6 || (major == 6 && minor >= 4);
}

/* The kernel treats a CPU that runs a SCHED_IDLE thread as idle when it wakes another thread. */
static bool enter_idle_class(void) {
  struct sched_param none = {0};
  return !pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
}

#else

/* No other system is known to have both properties, so there is no thread. */
static bool is_supported(void) { return false; }
static bool enter_idle_class(void) { return false; }

#endif

/* ---- The thread ---- */

static void *run_jobs(void *unused) {
  xt_thread_set_name("extorch_idle");
  bool allowed = enter_idle_class(); /* otherwise the thread would compete with others, and must not run any job */
  for (;;) {
    xt_semaphore_wait(&submitted);
    slot *s = oldest();
    if (!s || !change(s, QUEUED, RUNNING)) continue; /* it was cancelled */
    current = s;
    if (allowed) s->job.run(s->job.subject, s->job.from, s->job.to, &s->cancelled);
    if (current) finish(s);
  }
  return unused;
}

bool xt_background_pause(int microseconds) {
  slot *s = current;
  atomic_store(&s->state, PAUSED);
  /* If the job was cancelled just before this, the canceller did not see the paused state. Sleeping would delay the end
   * of the job. */
  if (!atomic_load(&s->cancelled)) {
    if (microseconds) xt_clock_sleep_us(microseconds);
    else xt_thread_yield();
  }
  if (!change(s, PAUSED, RUNNING)) current = NULL;
  return current != NULL;
}

static void start(void) {
  running = is_supported() && xt_semaphore_init(&submitted) && xt_thread_start(run_jobs, NULL);
}

/* ---- Other threads ---- */

bool xt_background_submit(xt_background_job job) {
  static xt_once once = XT_ONCE_INIT;
  xt_once_run(&once, start);
  for (int i = 0; running && i < SLOTS; i++) {
    slot *s = &slots[i];
    if (!change(s, FREE, CLAIMED)) continue;
    s->job = job;
    atomic_store(&s->subject, job.subject);
    atomic_store(&s->cancelled, false);
    atomic_store(&s->number, atomic_fetch_add(&next_number, 1));
    atomic_store(&s->state, QUEUED);
    xt_semaphore_post(&submitted);
    return true;
  }
  return false;
}

/* The slot may get another subject between the check and the cancellation. Then that job is cancelled too, which is
 * harmless because all jobs are optional. */
void xt_background_cancel(const void *subject) {
  for (int i = 0; i < SLOTS; i++) {
    slot *s = &slots[i];
    if (atomic_load(&s->subject) != subject) continue;
    atomic_store(&s->cancelled, true);
    if (change(s, QUEUED, CLAIMED) || change(s, PAUSED, CLAIMED)) finish(s);
  }
}

static bool runs_cancelled_job(void) {
  for (int i = 0; i < SLOTS; i++) {
    int state = atomic_load(&slots[i].state);
    if ((state == RUNNING || state == PAUSED) && atomic_load(&slots[i].cancelled)) return true;
  }
  return false;
}

void xt_background_settle(int timeout_ms) {
  for (int waited = 0; waited < 10 * timeout_ms && runs_cancelled_job(); waited++) xt_clock_sleep_us(100);
}
