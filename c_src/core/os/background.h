/* A thread for what is better done ahead: somebody does it anyway when it comes to it, and never waits for it.
 *
 * There is one for the process. It runs only when nobody else wants the core, so it may stand still anywhere, for as
 * long as others are busy. */
#ifndef XT_OS_BACKGROUND_H
#define XT_OS_BACKGROUND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* `run` works on these bytes of the subject until it is done or `forgotten`, and pauses between its pieces; `drop` lets
 * the subject go. */
typedef struct {
  void (*run)(void *subject, size_t from, size_t to, const atomic_bool *cancelled);
  void (*drop)(void *subject);
  void *subject;
  size_t from, to;
} xt_background_job;

/* False when there is much to do already, or no thread: then the subject is still the caller's to drop. */
bool xt_background_submit(xt_background_job job);

/* Nobody needs it any more: its jobs are dropped at once, except one in the middle of a piece, which ends with that. */
void xt_background_cancel(const void *subject);

/* Waits until the thread holds nothing that was forgotten, at most so long. */
void xt_background_settle(int timeout_ms);

/* For `run`: lets others have the core, and rests for less than a second where that is not 0. False: the job was
 * forgotten meanwhile and its subject is gone.
 *
 * Without it a scheduler of the VM that looked for work and gave up its core would get it back only at the kernel's
 * next tick. And with all cores busy everybody's timers come late, on virtual machines most of all: hence the rests. */
bool xt_background_pause(int microseconds);

#endif
