/* Touches fresh memory before it is filled. Most of the time of a large load is spent in page faults, where the kernel
 * clears pages. The background thread can take these faults while the reader copies. The reader takes the faults that
 * the thread has not got to yet. */
#ifndef XT_MEMORY_PREFAULT_H
#define XT_MEMORY_PREFAULT_H

#include "core/memory/region.h"

/* Asks the background thread to touch bytes [from, to) of the region. The job holds a reference to the region. Use it
 * only for memory that will certainly be filled, because touching commits the memory. */
void xt_prefault(xt_region *region, size_t from, size_t to);

/* Cancels the request, because the region has been filled or is no longer needed. */
void xt_prefault_cancel(const xt_region *region);

#endif
