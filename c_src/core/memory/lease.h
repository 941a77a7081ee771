/* Memory lent to a borrower that holds only its address. The object that owns the memory is kept until the borrower
 * returns it. */
#ifndef XT_MEMORY_LEASE_H
#define XT_MEMORY_LEASE_H

#include <stdbool.h>

/* Keeps the object. Returns false if there is no memory for the entry. */
bool xt_lease_keep(void *object);

/* Calls `visit` with every object, the newest first, until it returns true. Returns that object, or NULL. No lease can
 * be added or removed meanwhile. */
typedef bool xt_lease_visit(void *object, void *context);
void *xt_lease_find(xt_lease_visit *visit, void *context);

/* The same, but ends the lease of the object. */
void *xt_lease_release(xt_lease_visit *visit, void *context);

#endif
