/* The address ranges that immutable Erlang binaries refer to. Every operation that writes to memory checks here first,
 * no matter through which view, operator or raw pointer it reached the memory. Ranges may repeat and overlap: memory is
 * frozen as long as any range covers it. */
#ifndef XT_MEMORY_FROZEN_H
#define XT_MEMORY_FROZEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A node in the tree of ranges, embedded in the object that freezes the memory. A zeroed node freezes nothing. */
typedef struct xt_frozen {
  struct xt_frozen *left, *right;
  uintptr_t start, end; /* [start, end) */
  uintptr_t last;       /* the largest end in this subtree */
  uint32_t priority;
} xt_frozen;

/* Freezes a range. An empty range freezes nothing. */
void xt_frozen_add(xt_frozen *node, const void *data, size_t size);

/* Ends the freeze. Accepts a node that was never added. */
void xt_frozen_remove(xt_frozen *node);

/* Returns whether any byte of the range is frozen. */
bool xt_frozen_overlaps(const void *data, size_t size);

#endif
