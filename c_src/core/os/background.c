#include "core/os/background.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

enum { ROOM = 16 };

/* free --give--> taken --> waiting --the thread--> in hand <--> paused; in hand --> free; waiting or paused --forget-->
 * taken --> free.
 *
 * No locks: this thread may be put aside while it holds one, and then everybody would wait for it. It may also be put
 * aside in a pause, for long where all cores are busy; so others can take the job from it there. */
enum { FREE, TAKEN, WAITING, IN_HAND, PAUSED };

typedef struct {
  atomic_int state;
  atomic_bool cancelled;
  _Atomic(const void *) subject; /* the job's, also for those who only look */
  atomic_uint_least64_t number;  /* the lowest is the oldest */
  xt_background_job job;
} slot;

static slot slots[ROOM];
static atomic_uint_least64_t numbers;
static sem_t given;
static bool running;
static slot *at_work; /* the thread's own: what it has in hand, NULL once that was taken from it */

static void rest(int microseconds) { nanosleep(&(struct timespec){0, microseconds * 1000L}, NULL); }

static bool change(slot *s, int from, int to) { return atomic_compare_exchange_strong(&s->state, &from, to); }

static void end(slot *s) {
  s->job.drop(s->job.subject);
  atomic_store(&s->subject, NULL);
  atomic_store(&s->state, FREE);
}

static slot *oldest(void) {
  slot *found = NULL;
  for (int i = 0; i < ROOM; i++)
    if (atomic_load(&slots[i].state) == WAITING &&
        (!found || atomic_load(&slots[i].number) < atomic_load(&found->number)))
      found = &slots[i];
  return found;
}

static void *work(void *unused) {
  struct sched_param none = {0};
  /* Wakes of any other thread go to this thread's core as if it were idle. Without that it must not run. */
  bool allowed = !pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
  for (;;) {
    while (sem_wait(&given) && errno == EINTR) {
    }
    slot *s = oldest();
    if (!s || !change(s, WAITING, IN_HAND)) continue; /* it was forgotten */
    at_work = s;
    if (allowed) s->job.run(s->job.subject, s->job.from, s->job.to, &s->cancelled);
    if (at_work) end(s);
  }
  return unused;
}

bool xt_background_pause(int microseconds) {
  slot *s = at_work;
  atomic_store(&s->state, PAUSED);
  /* forgotten just before: nobody saw that it is paused, and the thread may not come back soon */
  if (!atomic_load(&s->cancelled)) {
    if (microseconds) rest(microseconds);
    else sched_yield();
  }
  if (!change(s, PAUSED, IN_HAND)) at_work = NULL;
  return at_work != NULL;
}

/* The jobs fault pages in. Only since Linux 6.4 that holds no lock of the whole address space. */
static bool faults_alone(void) {
  struct utsname system;
  int major = 0, minor = 0;
  if (uname(&system) || sscanf(system.release, "%d.%d", &major, &minor) != 2) return false;
  return !strcmp(system.sysname, "Linux") && (major > 6 || (major == 6 && minor >= 4));
}

static void start(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  if (!faults_alone() || sem_init(&given, 0, 0)) return;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  running = !pthread_create(&thread, &attributes, work, NULL);
  pthread_attr_destroy(&attributes);
  if (running) pthread_setname_np(thread, "extorch_idle");
}

bool xt_background_submit(xt_background_job job) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start);
  for (int i = 0; running && i < ROOM; i++) {
    slot *s = &slots[i];
    if (!change(s, FREE, TAKEN)) continue;
    s->job = job;
    atomic_store(&s->subject, job.subject);
    atomic_store(&s->cancelled, false);
    atomic_store(&s->number, atomic_fetch_add(&numbers, 1));
    atomic_store(&s->state, WAITING);
    sem_post(&given);
    return true;
  }
  return false;
}

/* A slot may get another subject while it is looked at. That one is then forgotten too, which costs only the help. */
void xt_background_cancel(const void *subject) {
  for (int i = 0; i < ROOM; i++) {
    slot *s = &slots[i];
    if (atomic_load(&s->subject) != subject) continue;
    atomic_store(&s->cancelled, true);
    if (change(s, WAITING, TAKEN) || change(s, PAUSED, TAKEN)) end(s);
  }
}

static bool holds_forgotten(void) {
  for (int i = 0; i < ROOM; i++) {
    int state = atomic_load(&slots[i].state);
    if ((state == IN_HAND || state == PAUSED) && atomic_load(&slots[i].cancelled)) return true;
  }
  return false;
}

void xt_background_settle(int timeout_ms) {
  for (int waited = 0; waited < 10 * timeout_ms && holds_forgotten(); waited++) rest(100);
}
