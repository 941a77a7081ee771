#include "core/os/thread.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

#include "core/os/clock.h"

enum { NS_PER_S = 1000000000 };

bool xt_thread_start(void *(*run)(void *argument), void *argument) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  bool started = !pthread_create(&thread, &attributes, run, argument);
  pthread_attr_destroy(&attributes);
  return started;
}

bool xt_thread_start_joinable(xt_thread *thread, void *(*run)(void *argument), void *argument) {
  return !pthread_create(thread, NULL, run, argument);
}

void xt_thread_join(xt_thread thread) { pthread_join(thread, NULL); }

void xt_thread_yield(void) { sched_yield(); }

#ifdef __APPLE__

void xt_thread_set_name(const char *name) { pthread_setname_np(name); }

void xt_condition_init(xt_condition *condition) { pthread_cond_init(condition, NULL); }

/* A deadline would be measured by the wall clock, which can be set, so the wait is relative. */
bool xt_condition_wait_until(xt_condition *condition, xt_mutex *mutex, int64_t deadline_ns) {
  int64_t left = deadline_ns - xt_clock_ns();
  if (left <= 0) return false;
  struct timespec timeout = {left / NS_PER_S, left % NS_PER_S};
  return pthread_cond_timedwait_relative_np(condition, mutex, &timeout) != ETIMEDOUT;
}

#else

void xt_thread_set_name(const char *name) { pthread_setname_np(pthread_self(), name); }

void xt_condition_init(xt_condition *condition) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

bool xt_condition_wait_until(xt_condition *condition, xt_mutex *mutex, int64_t deadline_ns) {
  struct timespec deadline = {(time_t)(deadline_ns / NS_PER_S), (long)(deadline_ns % NS_PER_S)};
  return pthread_cond_timedwait(condition, mutex, &deadline) != ETIMEDOUT;
}

#endif
