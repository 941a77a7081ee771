/* Touching fresh memory ahead of whoever fills it. Most of a large load is the kernel clearing pages for the first
 * time, which the idle thread can do beside the copying; what it has not touched yet, the reader's own faults back. */
#ifndef XT_MEMORY_PREFAULT_H
#define XT_MEMORY_PREFAULT_H

#include "core/memory/region.h"

/* Touch these bytes of the region soon, if there is time. The region is counted, so it may be dropped meanwhile. Only
 * ask for what will surely be filled: it takes memory. */
void xt_prefault(xt_region *region, size_t from, size_t to);

/* The region is filled, or given up. */
void xt_prefault_cancel(const xt_region *region);

#endif
