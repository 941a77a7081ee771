/* Native memory: counters, the budget, and the allocator of large blocks.
 *
 * All CPU allocations of LibTorch go through xt_memory_alloc (the torch layer installs it), so the counters are exact
 * and the budget includes temporary tensors.
 */
#ifndef XT_MEMORY_MEMORY_H
#define XT_MEMORY_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  atomic_int_least64_t tensors; /* tensor handles */
  atomic_int_least64_t bytes;   /* allocated and not freed yet */
  atomic_int_least64_t mapped;  /* bytes of mapped files */
  atomic_int_least64_t leased;  /* bytes that a backend of Nx holds by their address */
  atomic_int_least64_t threads; /* threads that work for a caller, without the reaper and the background thread */
} xt_memory_counters;

extern xt_memory_counters xt_memory_live;

/* The budget is the maximum of xt_memory_live.bytes; INT64_MAX means unlimited. */
void xt_memory_set_budget(int64_t bytes);
int64_t xt_memory_budget(void);

/* Returns uninitialized memory, aligned to 64 bytes; blocks of 2 MiB and more are aligned to a huge page. Returns NULL
 * if the budget is exceeded or the system is out of memory; xt_memory_refused returns which. Up to 32 MiB of recently
 * freed blocks are cached for about a second (block_cache.h) and are not part of the counters or the budget. */
void *xt_memory_alloc(size_t size);
void xt_memory_free(void *data);

/* Counts memory of another allocator in xt_memory_live.bytes. Returns false, without counting it, if the budget would
 * be exceeded; xt_memory_refused then returns XT_REFUSED_BUDGET. */
bool xt_memory_charge(int64_t bytes);
void xt_memory_discharge(int64_t bytes);

/* Returns why the last failed allocation of this thread failed, and resets the answer. */
typedef enum { XT_REFUSED_NOT, XT_REFUSED_BUDGET, XT_REFUSED_MACHINE } xt_refused;
xt_refused xt_memory_refused(void);

/* Returns the bytes that this thread has allocated since the last call. A NIF reports them to Elixir. */
int64_t xt_memory_taken(void);

/* Adds bytes to what xt_memory_taken returns: memory of a device, or what another thread has allocated for this one. */
void xt_memory_take(int64_t bytes);

#endif
