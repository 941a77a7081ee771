/* The CPUs of the machine. */
#ifndef XT_OS_CPU_H
#define XT_OS_CPU_H

/* Returns the number of CPUs that are online, at least 1. */
int xt_cpu_count(void);

#endif
