/* A counting semaphore. A post takes no lock and never blocks, so it is safe for a thread that may be suspended at any
 * point. */
#ifndef XT_OS_SEMAPHORE_H
#define XT_OS_SEMAPHORE_H

#include <stdbool.h>

#ifdef __APPLE__
typedef struct {
  void *dispatch; /* dispatch_semaphore_t */
} xt_semaphore;
#else
#include <semaphore.h>
typedef sem_t xt_semaphore;
#endif

/* Creates a semaphore with count 0, which is never destroyed. Returns false if the system has none left. */
bool xt_semaphore_init(xt_semaphore *semaphore);

void xt_semaphore_post(xt_semaphore *semaphore);
void xt_semaphore_wait(xt_semaphore *semaphore);

/* Same as xt_semaphore_wait, but may return early: after the timeout or when a signal arrives. */
void xt_semaphore_wait_ms(xt_semaphore *semaphore, int timeout_ms);

#endif
