/* Checks how an address range is mapped. The kernel does the check, so an invalid pointer gives an answer instead of a
 * SIGSEGV. */
#ifndef XT_OS_ADDRESS_H
#define XT_OS_ADDRESS_H

#include <stddef.h>

typedef enum {
  XT_ACCESS_NONE, /* some bytes are not mapped, or cannot be read */
  XT_ACCESS_READ, /* some bytes cannot be written */
  XT_ACCESS_WRITE
} xt_access;

/* Returns what is possible with every byte of the range. Takes microseconds on Linux 6.11 and newer and on macOS, and
 * up to some milliseconds elsewhere: it then reads the list of the mappings of the process. */
xt_access xt_address_access(const void *data, size_t size);

#endif
