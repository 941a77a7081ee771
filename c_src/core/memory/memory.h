/* Native memory: who holds how much, how much is allowed, and where large blocks come from.
 *
 * Every CPU allocation of LibTorch passes through xt_memory_alloc (the shim installs it), so the
 * counters are exact and the budget sees temporaries too.
 */
#ifndef XT_MEMORY_MEMORY_H
#define XT_MEMORY_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  atomic_int_least64_t tensors; /* tensor handles */
  atomic_int_least64_t bytes;   /* memory we allocated and have not freed */
  atomic_int_least64_t mapped;  /* file bytes mapped into the address space */
  atomic_int_least64_t threads; /* threads working for a caller; the reaper is not one */
} xt_memory_counters;

extern xt_memory_counters xt_memory_live;

/* The most bytes that may be live at once; INT64_MAX means no budget. */
void xt_memory_set_budget(int64_t bytes);
int64_t xt_memory_budget(void);

/* Uninitialised memory, 64-byte aligned; blocks of several MiB start on a huge page. NULL when the budget or the
 * machine has no more: xt_memory_refused tells which (and resets the answer). Up to 32 MiB that were just freed
 * are kept for about a second (spare.h), beside the counters and the budget. */
void *xt_memory_alloc(size_t size);
void xt_memory_free(void *data);

typedef enum { XT_REFUSED_NOT, XT_REFUSED_BUDGET, XT_REFUSED_MACHINE } xt_refused;
xt_refused xt_memory_refused(void);

/* Bytes this thread has allocated since the last call: what a NIF tells Elixir it took. */
int64_t xt_memory_taken(void);

/* Adds what another thread allocated on behalf of this one. */
void xt_memory_add_taken(int64_t bytes);

#endif
