/* Called between two pieces of a long job: yields the CPU to other threads.
 *
 * The VM's schedulers call sched_yield a hundred times before they sleep. If they share a CPU with a thread that never
 * yields, each of these calls costs them a scheduler tick, and every process of the VM stalls for tens of milliseconds.
 * So long jobs yield too, but give away no more than a share of their time. */
#ifndef XT_OS_CPU_YIELD_H
#define XT_OS_CPU_YIELD_H

enum {
  XT_CPU_YIELD_SHARE = 4,          /* other threads get at most one in this many parts of the thread's time */
  XT_CPU_YIELD_BURST_NS = 5000000, /* plus this much at once, so that the thread keeps yielding after one long wait */
};

void xt_cpu_yield(void);

#endif
