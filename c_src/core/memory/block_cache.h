/* A cache of large blocks that were freed recently. A block from the cache is faster than a fresh mapping, because the
 * kernel takes longer to clear fresh pages than it takes to fill them with data.
 *
 * The cache is small. If an allocation finds no suitable block, the cached blocks are freed first, so that they do not
 * add to the peak. */
#ifndef XT_MEMORY_BLOCK_CACHE_H
#define XT_MEMORY_BLOCK_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/memory/reaper.h"

/* A memory mapping with its header in front of the data:
 *
 *   map … [xt_block] data (aligned to a page or to 2 MiB) … map + map_size
 */
typedef struct {
  xt_reapable reapable; /* must be first */
  void *map;
  size_t map_size;
  size_t size; /* requested by the owner */
} xt_block;

enum { XT_BLOCK_ROOM = 64 }; /* bytes reserved for the header; keeps the data 64-byte aligned */
_Static_assert(sizeof(xt_block) <= XT_BLOCK_ROOM, "the header fits into the space in front of the data");

static inline char *xt_block_data(xt_block *block) { return (char *)block + XT_BLOCK_ROOM; }

/* Takes ownership of an unused block and caches it for about a second. Blocks that are too large are freed at once. */
void xt_block_cache_put(xt_block *block);

/* Returns a block with room for `size` bytes of data, or NULL if none fits. In that case all cached blocks are freed.
 */
xt_block *xt_block_cache_take(size_t size);

/* Returns a block to the system in slices, because one large munmap stalls every mmap of the process. */
void xt_block_free(xt_block *block);

#endif
