#include "core/os/pages.h"

#include <stdint.h>
#include <sys/mman.h>

enum { SLICE = 4 << 20 }; /* takes about a millisecond; a multiple of the huge page size */

void *xt_pages_map(size_t size) {
  void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? NULL : data;
}

void xt_pages_prefer_huge(void *data, size_t size) {
#ifdef MADV_HUGEPAGE
  madvise(data, size, MADV_HUGEPAGE);
#else
  (void)data, (void)size;
#endif
}

/* MADV_POPULATE_WRITE of Linux 5.14. Its headers may be older than the kernel. */
void xt_pages_populate(void *data, size_t size) {
#ifdef __linux__
  enum { PAGE = 4096, POPULATE_WRITE = 23 };
  size_t before = (uintptr_t)data % PAGE;
  madvise((char *)data - before, before + size, POPULATE_WRITE);
#else
  (void)data, (void)size;
#endif
}

void xt_pages_unmap(void *data, size_t size) { munmap(data, size); }

/* Linux frees the pages of a slice while it holds the lock of the address space for reading only. Elsewhere
 * MADV_DONTNEED frees nothing, so the slices themselves are unmapped. */
static void free_slice(char *slice, size_t size) {
#ifdef __linux__
  madvise(slice, size, MADV_DONTNEED);
#else
  munmap(slice, size);
#endif
}

void xt_pages_unmap_in_slices(void *data, size_t size) {
  /* Slices end at multiples of their size, so that no huge page is split. */
  size_t first = SLICE - (uintptr_t)data % SLICE;
  for (size_t at = 0, part = first; at < size; at += part, part = SLICE)
    free_slice((char *)data + at, size - at < part ? size - at : part);
#ifdef __linux__
  munmap(data, size);
#endif
}
