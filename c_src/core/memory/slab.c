#include "core/memory/slab.h"

#include "core/memory/memory.h"

enum {
  ALIGNMENT = 64,
  MIN_PARTS = 8 /* a slab holds at least this many regions of the size of its first one */
};

_Static_assert(ALIGNMENT % _Alignof(xt_region) == 0, "the regions at the end of a slab are aligned");

static size_t align(size_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Makes a new slab, unless it would be too small for regions of this cost. */
static bool renew(xt_slab *s, size_t cost) {
  if (cost > s->taken / MIN_PARTS) return false;
  xt_region *region = xt_region_new(align(s->taken), 0);
  if (!region) {
    xt_memory_refused(); /* there may be memory for the region alone */
    return false;
  }
  xt_region_drop(s->region);
  s->region = region;
  s->from = 0;
  s->to = region->size;
  return true;
}

static xt_region *take_part(xt_slab *s, size_t bytes) {
  uint8_t *data = s->region->data + s->from;
  s->from += align(bytes);
  s->to -= sizeof(xt_region);
  return xt_region_part_at(s->region, s->region->data + s->to, data, bytes);
}

xt_region *xt_slab_take(xt_slab *s, size_t size) {
  size_t bytes = size ? size : 1; /* regions without bytes have different addresses, too */
  if (bytes > XT_SLAB_MAX / MIN_PARTS) return xt_region_new(bytes, 0);
  size_t cost = align(bytes) + sizeof(xt_region);
  bool fits = s->to - s->from >= cost || renew(s, cost);
  xt_region *region = fits ? take_part(s, bytes) : xt_region_new(bytes, 0);
  if (!region) return NULL;
  region->size = size;
  s->taken = cost < XT_SLAB_MAX - s->taken ? s->taken + cost : XT_SLAB_MAX;
  return region;
}

void xt_slab_free(xt_slab *s) {
  xt_region_drop(s->region);
  *s = (xt_slab){NULL};
}
