/* Reference-counted memory that tensors are views of: heap memory, a mapped file, or memory owned by another object. */
#ifndef XT_MEMORY_REGION_H
#define XT_MEMORY_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/memory/reaper.h"
#include "core/os/file.h"

typedef struct xt_region {
  xt_reapable reapable; /* must be first */
  atomic_int references;
  bool is_part; /* lies in the block of its slab, which frees it */
  uint8_t *data;
  size_t size;
  void (*release)(struct xt_region *self); /* releases `owner`; the region itself is freed afterwards */
  void *owner;
} xt_region;

/* Allocates uninitialized memory whose address is congruent to `offset` modulo the page size, which makes read()
 * several times faster. Returns NULL if the budget is exceeded or the system is out of memory (see xt_region_refused).
 */
xt_region *xt_region_new(size_t size, uint64_t offset);

/* Same, with room for `parts` regions in the same block: a slab, of which each part keeps the whole. */
xt_region *xt_region_new_slab(size_t size, uint64_t offset, size_t parts);

/* Makes a slab without memory of its own: its parts are views of `memory`, which it keeps. Returns NULL if there is no
 * memory for the regions themselves. */
xt_region *xt_region_new_views(xt_region *memory, size_t parts);

/* Makes one of the parts, with memory of the slab. Its number is below `parts`, and is used once. */
xt_region *xt_region_part(xt_region *slab, size_t number, uint8_t *data, size_t size);

/* Makes a part whose xt_region is at this address, which is also inside the slab's memory. */
xt_region *xt_region_part_at(xt_region *slab, void *at, uint8_t *data, size_t size);

/* Makes a region of memory that `owner` keeps alive. Returns NULL if there is no memory for the region itself. */
xt_region *xt_region_foreign(void *data, size_t size, void *owner, void (*release)(xt_region *self));

/* Maps a whole file; see os/mapping.h. */
xt_status xt_region_map(const xt_file *file, xt_region **out, xt_error *error);

/* Fills *error with the reason why xt_region_new returned NULL, and returns its status. */
xt_status xt_region_refused(xt_error *error);

xt_region *xt_region_keep(xt_region *region);

/* Drops a reference. The last drop frees the region on this thread. The parameter is a void pointer so that the
 * function can be used as a release callback. */
void xt_region_drop(void *region);

/* Same as xt_region_drop, but the reaper frees the region. For code that runs on a normal scheduler. */
void xt_region_drop_later(xt_region *region);

#endif
