/* Checks whether an address range can be read. The kernel does the check, so an invalid pointer gives false instead of
 * a SIGSEGV. */
#ifndef XT_OS_ADDRESS_H
#define XT_OS_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

bool xt_address_readable(const void *data, size_t size);

#endif
