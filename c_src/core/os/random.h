/* Random bytes from the system. */
#ifndef XT_OS_RANDOM_H
#define XT_OS_RANDOM_H

#include <stddef.h>

/* Fills memory with random bytes. Never blocks and never fails: if the system has no random bytes yet, early after the
 * boot, the bytes are derived from the time, the process id and an address. */
void xt_random_fill(void *to, size_t size);

#endif
