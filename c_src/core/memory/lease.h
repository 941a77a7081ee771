/* Memory lent to somebody who cannot hold it himself: kept under its address until it is given back. */
#ifndef XT_MEMORY_LEASE_H
#define XT_MEMORY_LEASE_H

#include <stdbool.h>

/* Keeps the object. Several leases of one address are kept side by side. False when there is no memory for the note. */
bool xt_lease_keep(const void *address, void *object);

/* The object of one lease of the address, which ends; NULL when there is none. */
void *xt_lease_release(const void *address);

#endif
