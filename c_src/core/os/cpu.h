/* The CPUs and the memory of the machine. */
#ifndef XT_OS_CPU_H
#define XT_OS_CPU_H

#include <stdint.h>

/* Returns the number of CPUs that the process may use, at least 1. */
int xt_cpu_count(void);

/* Returns the bytes of physical memory, or UINT64_MAX if that is not known. */
uint64_t xt_cpu_memory(void);

#endif
