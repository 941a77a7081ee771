/* Large blocks that were just freed, kept for a moment: who needs such a block next does not wait for the kernel to
 * clear fresh pages, which takes longer than to fill them.
 *
 * They are few, and they go when a large block is wanted that none of them suits: they do not come on top of it. */
#ifndef XT_MEMORY_BLOCK_CACHE_H
#define XT_MEMORY_BLOCK_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/memory/reaper.h"

/* A mapping of its own, described in the page before its data:
 *
 *   map ……… [xt_block] data (2 MiB aligned) …………… end
 */
typedef struct {
  xt_reapable reapable; /* first */
  void *map;
  size_t map_size;
  size_t size; /* what its owner asked for */
} xt_block;

enum { XT_BLOCK_ROOM = 64 }; /* before the data, which keeps its alignment so */
_Static_assert(sizeof(xt_block) <= XT_BLOCK_ROOM, "the description fits its room");

static inline char *xt_block_data(xt_block *block) { return (char *)block + XT_BLOCK_ROOM; }

/* Takes over a block that nobody needs: kept for a moment, if it is not too large, or given back. */
void xt_block_cache_put(xt_block *block);

/* A block with room for so many bytes of data, or NULL; then those that are left are given back. */
xt_block *xt_block_cache_take(size_t size);

/* Gives a block back to the system, in slices: one large munmap stalls every mmap of the process. */
void xt_block_free(xt_block *block);

#endif
