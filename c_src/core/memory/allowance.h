/* The memory that one file may make the program hold besides its tensors: the object tree, the index, tables, buffers
 * and the terms made of them. It depends only on the number of bytes that are really there, never on what the file
 * declares or on how far its contents expand. What is taken is also charged to the budget (memory.h). */
#ifndef XT_MEMORY_ALLOWANCE_H
#define XT_MEMORY_ALLOWANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

typedef struct {
  uint64_t used, limit;
  bool exceeded; /* a call has failed because of the limit */
} xt_allowance;

/* Returns the limit for a file of the given size: 56 MiB and 15 times the file. The rest of the promised 64 MiB and 16
 * times the file is for one copy of the file and for what the system needs. The files of one checkpoint (shards, parts)
 * share the 56 MiB. */
uint64_t xt_allowance_for(uint64_t file_size, uint64_t files);

/* Takes bytes. Returns false if the limit or the budget would be exceeded. NULL has no limit and charges nothing. */
bool xt_allowance_take(xt_allowance *allowance, uint64_t bytes);
void xt_allowance_return(xt_allowance *allowance, uint64_t bytes);

/* Makes room for `count` items of an array (base/array.h). Who frees the items returns `room * size` bytes. */
bool xt_allowance_reserve(xt_allowance *allowance, void *array, size_t *room, size_t count, size_t size);

/* Returns whether `bytes` more would fit, for memory that is not native. */
bool xt_allowance_fits(xt_allowance *allowance, uint64_t bytes);

/* Replaces the error of an allocation that failed because of the limit or the budget. Returns the status. */
xt_status xt_allowance_explain(xt_allowance *allowance, xt_status status, xt_error *error);

#endif
