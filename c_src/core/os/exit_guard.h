/* Counts the calls that are inside LibTorch, so that LibTorch's static destructors do not run at the same time when the
 * process exits. */
#ifndef XT_OS_EXIT_GUARD_H
#define XT_OS_EXIT_GUARD_H

#include <stdbool.h>

/* Returns false if the process is exiting; the call must not begin then. Every true needs one xt_exit_guard_leave. */
bool xt_exit_guard_enter(void);
void xt_exit_guard_leave(void);

/* Returns whether the process is exiting. A call that waits for another thread must give up then. */
bool xt_exit_guard_stopping(void);

/* Must surround the load of LibTorch, which takes some hundred milliseconds. Returns false if the process is exiting.
 *
 * They register the exit handler, which rejects new calls and waits up to two seconds for those that are inside. If
 * some still are, it ends the process at once. It also does that during a load. After the load, the handler runs before
 * those of LibTorch. */
bool xt_exit_guard_begin_load(void);
void xt_exit_guard_end_load(void);

/* Sets the function with which the handler stops the thread that frees memory (memory/reaper.h). It returns false if
 * that takes longer than the timeout. */
void xt_exit_guard_at_halt(bool (*halt)(int timeout_ms));

/* Does the work of the handler, except for ending the process. For a runtime system that announces its exit. */
void xt_exit_guard_halt(void);

#endif
