/* The weight of a node: the bytes of the term that is made of it, without those of its children.
 *
 * Terms are not native memory, so they are weighed instead of counted. A node that the tree contains more than once is
 * weighed each time, because messages and most functions expand shared terms. */
#ifndef XT_CHECKPOINT_WEIGHT_H
#define XT_CHECKPOINT_WEIGHT_H

#include "core/pickle/node.h"

uint64_t xt_weight_of(const xt_node *node);

/* The bytes of the term on the heap of a process, where a shared one is once; of a tensor, those of its struct. */
uint64_t xt_weight_on_heap(const xt_node *node);

/* The weight of an index entry with its tensor, native memory included, besides its name and path. */
uint64_t xt_weight_of_entry(const xt_tensor_desc *tensor);

enum { XT_WEIGHT_STEP = 24 }; /* of one step of a path, besides its key */

#endif
