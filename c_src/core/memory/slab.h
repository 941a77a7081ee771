/* Small regions that share memory. Neighboring storages of a stream get parts of one block, a slab:
 *
 *   data of part 0, data of part 1, …      free      …, region of part 1, region of part 0
 *
 * A slab is freed with its last part, so a part never keeps more than XT_SLAB_MAX bytes. The sizes that a stream
 * declares are not trusted: a slab is at most as large as all small regions before it, whose bytes have arrived. The
 * first regions have memory of their own.
 *
 * Slabs of up to 2 MiB, with parts of up to 64 KiB, were not measurably faster. */
#ifndef XT_MEMORY_SLAB_H
#define XT_MEMORY_SLAB_H

#include "core/memory/region.h"

enum { XT_SLAB_MAX = 16 << 10 };

typedef struct {
  xt_region *region; /* the newest slab, or NULL */
  size_t from, to;   /* its free memory */
  size_t taken;      /* bytes of all small regions so far, up to XT_SLAB_MAX */
} xt_slab;

/* Returns a region of uninitialized memory, aligned to 64 bytes: a part of a slab, or with memory of its own if it is
 * larger than about an eighth of a slab, or if a slab would exceed the budget. Returns NULL like xt_region_new. */
xt_region *xt_slab_take(xt_slab *slab, size_t size);

/* Ends the use of the newest slab. Its parts remain. */
void xt_slab_free(xt_slab *slab);

#endif
