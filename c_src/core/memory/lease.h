/* Memory lent to a borrower that holds only its address. The object that owns the memory is kept under that address
 * until the borrower releases it. */
#ifndef XT_MEMORY_LEASE_H
#define XT_MEMORY_LEASE_H

#include <stdbool.h>

/* Keeps the object. An address may be leased several times. Returns false if there is no memory for the entry. */
bool xt_lease_keep(const void *address, void *object);

/* Ends one lease of the address and returns its object, or NULL if there is no lease. */
void *xt_lease_release(const void *address);

#endif
