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

/* Registers the exit handler, once. Must be called after LibTorch is loaded, so that the handler runs before LibTorch's
 * own. The handler rejects new calls and waits up to two seconds for those that are inside. If some still are, it ends
 * the process at once. */
void xt_exit_guard_install(void);

#endif
