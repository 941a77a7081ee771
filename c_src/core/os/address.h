/* Can this address range be read? Asked of the kernel, so that a wrong pointer is an answer and not a SIGSEGV. */
#ifndef XT_OS_ADDRESS_H
#define XT_OS_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

bool xt_address_readable(const void *data, size_t size);

#endif
