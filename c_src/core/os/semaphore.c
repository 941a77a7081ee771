#include "core/os/semaphore.h"

#ifdef __APPLE__ /* macOS has no unnamed POSIX semaphores */

#include <dispatch/dispatch.h>

bool xt_semaphore_init(xt_semaphore *semaphore) {
  semaphore->dispatch = dispatch_semaphore_create(0);
  return semaphore->dispatch != NULL;
}

void xt_semaphore_post(xt_semaphore *semaphore) { dispatch_semaphore_signal(semaphore->dispatch); }

void xt_semaphore_wait(xt_semaphore *semaphore) { dispatch_semaphore_wait(semaphore->dispatch, DISPATCH_TIME_FOREVER); }

void xt_semaphore_wait_ms(xt_semaphore *semaphore, int timeout_ms) {
  int64_t timeout_ns = (int64_t)timeout_ms * (int64_t)NSEC_PER_MSEC;
  dispatch_semaphore_wait(semaphore->dispatch, dispatch_time(DISPATCH_TIME_NOW, timeout_ns));
}

#else

#include <errno.h>
#include <time.h>

enum { NS_PER_S = 1000000000, NS_PER_MS = 1000000, MS_PER_S = 1000 };

bool xt_semaphore_init(xt_semaphore *semaphore) { return !sem_init(semaphore, 0, 0); }

void xt_semaphore_post(xt_semaphore *semaphore) { sem_post(semaphore); }

void xt_semaphore_wait(xt_semaphore *semaphore) {
  while (sem_wait(semaphore) && errno == EINTR) {
  }
}

/* sem_timedwait uses the wall clock. Setting that clock makes the timeout shorter or longer. */
void xt_semaphore_wait_ms(xt_semaphore *semaphore, int timeout_ms) {
  struct timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += timeout_ms / MS_PER_S;
  deadline.tv_nsec += (long)(timeout_ms % MS_PER_S) * NS_PER_MS;
  if (deadline.tv_nsec >= NS_PER_S) deadline.tv_sec++, deadline.tv_nsec -= NS_PER_S;
  sem_timedwait(semaphore, &deadline);
}

#endif
