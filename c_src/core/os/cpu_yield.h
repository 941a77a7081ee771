/* Between two pieces of a long job: whoever waits for this core goes first.
 *
 * The VM's schedulers look for work by giving up their core a hundred times before they sleep. On the core of a job
 * that never does the same, each of these times costs them a tick of the kernel, and every process of the VM stands
 * still for tens of milliseconds, even with other cores free. So the job gives up the core as well, and looks for
 * another one when somebody took it. */
#ifndef XT_OS_CPU_YIELD_H
#define XT_OS_CPU_YIELD_H

void xt_cpu_yield(void);

#endif
