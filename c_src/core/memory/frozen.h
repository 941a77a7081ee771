/* Memory that immutable Erlang binaries see, by address. Whatever view, operator or raw pointer leads to it, a
 * writer asks here first. Ranges may repeat and overlap: memory is frozen while any range over it is. */
#ifndef XT_MEMORY_FROZEN_H
#define XT_MEMORY_FROZEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A node of the tree of ranges, embedded in what does the freezing; zeroed means not frozen. */
typedef struct xt_frozen {
  struct xt_frozen *left, *right;
  uintptr_t start, end; /* [start, end) */
  uintptr_t last;       /* the largest end in this subtree */
  uint32_t priority;
} xt_frozen;

/* An empty range freezes nothing. */
void xt_frozen_add(xt_frozen *node, const void *data, size_t size);

/* Accepts a node that was never added. */
void xt_frozen_remove(xt_frozen *node);

/* Is any byte of the range frozen? */
bool xt_frozen_overlaps(const void *data, size_t size);

#endif
