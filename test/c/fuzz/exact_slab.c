/* Slabs for the fuzz targets, linked instead of core/memory/slab.c: every region has memory of exactly its size, so
 * that the sanitizer reports an access between two regions. */
#include "core/memory/slab.h"

xt_region *xt_slab_take(xt_slab *slab, size_t size) {
  (void)slab;
  xt_region *region = xt_region_new(size ? size : 1, 0);
  if (region) region->size = size;
  return region;
}

void xt_slab_free(xt_slab *slab) { (void)slab; }
