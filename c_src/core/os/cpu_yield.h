/* Called between two pieces of a long job: yields the CPU to other threads.
 *
 * The VM's schedulers call sched_yield a hundred times before they sleep. If they share a CPU with a thread that never
 * yields, each of these calls costs them a scheduler tick, and every process of the VM stalls for tens of milliseconds,
 * even if other CPUs are idle. So long jobs yield too, and move to another CPU if theirs is in demand. */
#ifndef XT_OS_CPU_YIELD_H
#define XT_OS_CPU_YIELD_H

void xt_cpu_yield(void);

#endif
