/* A thread for what is better done ahead: somebody does it anyway when it comes to it, and never waits for it.
 *
 * There is one for the process. It runs only when nobody else wants the core, so it may stand still anywhere, for as
 * long as others are busy. */
#ifndef XT_IDLE_H
#define XT_IDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* `run` works on these bytes of the subject until it is done or `forgotten`; `drop` lets the subject go. */
typedef struct {
  void (*run)(void *subject, size_t from, size_t to, const atomic_bool *forgotten);
  void (*drop)(void *subject);
  void *subject;
  size_t from, to;
} xt_idle_job;

/* False when there is much to do already, or no thread: then the subject is still the caller's to drop. */
bool xt_idle_give(xt_idle_job job);

/* Nobody needs it any more: its jobs are dropped as soon as the thread can, at once where it has not begun. */
void xt_idle_forget(const void *subject);

/* Waits until the thread holds nothing that was forgotten, at most so long. */
void xt_idle_settle(int timeout_ms);

/* Jobs rest now and then, less than a second: with all cores busy everybody's timers come late, on virtual machines
 * most of all. */
void xt_idle_rest(int microseconds);

/* And between any two pieces they give up the core: a scheduler of the VM that looked for work and gave it up would get
 * it back only at the kernel's next tick. */
void xt_idle_yield(void);

#endif
