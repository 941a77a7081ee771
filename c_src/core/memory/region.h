/* Counted bytes that tensors are views of: memory of ours, a mapped file, or memory that somebody else keeps. */
#ifndef XT_MEMORY_REGION_H
#define XT_MEMORY_REGION_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "core/memory/reaper.h"

typedef struct xt_region {
  xt_reapable reapable; /* first */
  atomic_int references;
  uint8_t *data;
  size_t size;
  void (*release)(struct xt_region *self); /* lets go of `owner`; then the region itself is freed */
  void *owner;
} xt_region;

/* Uninitialised memory whose address is congruent with `offset` modulo a page: read() is several times faster so. NULL
 * when the budget or the machine has no more (xt_memory_refused). */
xt_region *xt_region_new(size_t size, uint64_t offset);

/* Foreign memory; NULL when there is no memory for the region itself. */
xt_region *xt_region_foreign(void *data, size_t size, void *owner, void (*release)(xt_region *self));

xt_region *xt_region_keep(xt_region *region);

/* An xt_foreign's `release`: frees here when it was the last. */
void xt_region_drop(void *region);

/* The same for schedulers: the reaper frees. */
void xt_region_drop_later(xt_region *region);

#endif
