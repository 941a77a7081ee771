/* The address ranges that must not be written, and those that are being written.
 *
 * A range is *frozen* while an immutable Erlang binary refers to it, or while other memory depends on its values. Every
 * operation that writes to memory registers the range first, for as long as it may write. It is refused if a byte of it
 * is frozen, no matter through which view, operator or raw pointer it reached the memory. Freezing never waits: from
 * then on new writers are refused, and xt_frozen_writers tells whether earlier ones are still at work.
 *
 * Ranges may repeat and overlap: memory is frozen as long as any range covers it. */
#ifndef XT_MEMORY_FROZEN_H
#define XT_MEMORY_FROZEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A node in a tree of ranges, embedded in the object that freezes or writes the memory. A zeroed node has no effect. */
typedef struct xt_frozen {
  struct xt_frozen *left, *right;
  uintptr_t start, end; /* [start, end) */
  uintptr_t last;       /* the largest end in this subtree */
  uint32_t priority;
  uint32_t kind; /* the tree that contains the node */
} xt_frozen;

/* Freezes a range. An empty range freezes nothing. */
void xt_frozen_add(xt_frozen *node, const void *data, size_t size);

/* Registers a writer. Returns false, and registers nothing, if a byte of the range is frozen. `lent` is for memory that
 * was given to another library, which may write to it until it gives it back. */
bool xt_frozen_write(xt_frozen *node, const void *data, size_t size, bool lent);

/* Ends the freeze or the registration. Accepts a node that was never added. */
void xt_frozen_remove(xt_frozen *node);

/* Returns who may be writing to a byte of the range. A call ends soon; memory may be lent for a long time. */
typedef enum { XT_WRITERS_NONE, XT_WRITERS_CALL, XT_WRITERS_LENT } xt_writers;
xt_writers xt_frozen_writers(const void *data, size_t size);

#endif
