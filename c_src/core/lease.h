/* Memory lent to somebody who cannot hold it himself: kept under its address until it is given back. */
#ifndef XT_LEASE_H
#define XT_LEASE_H

#include <stdbool.h>

#include "reaper.h"

/* Keeps the item. Several leases of one address are kept side by side. False when there is no memory for the note. */
bool xt_lease_keep(const void *address, xt_reapable *item);

/* Gives one lease of the address to the reaper. False when there is none. */
bool xt_lease_end(const void *address);

#endif
