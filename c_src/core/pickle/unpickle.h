/* The unpickler: reads protocols 0 to 5 into a node tree. It has an explicit stack and runs no code. A memo entry that
 * is used several times is one node in several places of the tree. */
#ifndef XT_PICKLE_UNPICKLE_H
#define XT_PICKLE_UNPICKLE_H

#include "core/pickle/rebuild.h"

/* Reads the pickle at the start of data and sets *used to its length. Strings of the tree point into data, which must
 * outlive the tree. The error's offset counts from data. */
xt_status xt_unpickle(const uint8_t *data, size_t size, xt_rebuild *rebuild, size_t *used, xt_node **root);

#endif
