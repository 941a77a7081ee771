/* Anonymous memory mappings. */
#ifndef XT_OS_PAGES_H
#define XT_OS_PAGES_H

#include <stddef.h>

/* Maps zeroed memory. Returns NULL if the system is out of memory. */
void *xt_pages_map(size_t size);

/* Requests huge pages, on systems that provide them on request. */
void xt_pages_prefer_huge(void *data, size_t size);

/* Makes the system provide the pages that contain these bytes, which are about to be written, all at once: one page
 * fault for each would take several times as long. Does nothing on systems that cannot. */
void xt_pages_populate(void *data, size_t size);

void xt_pages_unmap(void *data, size_t size);

/* Same as xt_pages_unmap, but in slices of a few MiB: one large munmap stalls every mmap of the process. */
void xt_pages_unmap_in_slices(void *data, size_t size);

#endif
