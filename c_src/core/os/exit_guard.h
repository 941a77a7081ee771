/* Calls that are inside LibTorch. When the process ends, its static destructors must not run beside them. */
#ifndef XT_OS_EXIT_GUARD_H
#define XT_OS_EXIT_GUARD_H

#include <stdbool.h>

/* False when the process is stopping: the call must not begin. Every true is paired with one leave. */
bool xt_exit_guard_enter(void);
void xt_exit_guard_leave(void);

/* Has the end begun? Whoever waits inside for somebody else gives up then. */
bool xt_exit_guard_stopping(void);

/* Registers the exit handler, once, after LibTorch is loaded so that it runs before LibTorch's own: it refuses new
 * calls, waits two seconds for those inside, and if some still are, ends the process at once. */
void xt_exit_guard_install(void);

#endif
