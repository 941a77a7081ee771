/* The weight of a node: the bytes of the term that is made of it, without those of its children.
 *
 * Terms are not native memory, so they are weighed instead of counted. A node that the tree contains more than once is
 * weighed each time, because messages and most functions expand shared terms. */
#ifndef XT_CHECKPOINT_WEIGHT_H
#define XT_CHECKPOINT_WEIGHT_H

#include "core/pickle/node.h"

uint64_t xt_weight_of(const xt_node *node);

/* The weight of an index entry and its tensor, besides its path and a long name. */
enum { XT_WEIGHT_ENTRY = 850, XT_WEIGHT_STEP = 24 };

#endif
