/* The pickle machine: protocols 0 to 5, an explicit stack, a memo that aliases, and no execution. */
#ifndef XT_PICKLE_UNPICKLE_H
#define XT_PICKLE_UNPICKLE_H

#include "core/pickle/rebuild.h"

/* Reads one pickle from the start of data. *used is set to its length; strings of the tree point into data, which must
 * outlive it. The error's offset counts from data. */
xt_status xt_unpickle(const uint8_t *data, size_t size, xt_rebuild *rebuild, size_t *used, xt_node **root);

#endif
