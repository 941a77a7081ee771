/* Lets other threads of a CPU run between two steps of a long job.
 *
 * A scheduler of the VM that looks for work calls sched_yield() again and again, and each time Linux puts it behind the
 * other threads of its CPU by a time slice. Beside threads on all CPUs that never yield, it would wait for up to
 * hundreds of milliseconds. So long jobs yield after each step, and take small steps while others run. */
#ifndef XT_OS_YIELD_H
#define XT_OS_YIELD_H

#include <stddef.h>
#include <stdint.h>

/* Called before `size` bytes are processed. Returns how many of them the calling thread should process before it calls
 * this again: fewer if another thread has run. If that thread kept the CPU, as one that works would, the caller works
 * for as long without yielding, or it would get much less than its share. Small sizes do not yield each time. */
size_t xt_yield(uint64_t size);

#endif
