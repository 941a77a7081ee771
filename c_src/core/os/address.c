#include "core/os/address.h"

#include <inttypes.h>
#include <stdbool.h>

#ifdef __APPLE__

#include <mach/mach.h>

static xt_access scan(uintptr_t from, uintptr_t last) {
  xt_access access = XT_ACCESS_WRITE;
  for (;;) {
    vm_address_t start = from;
    vm_size_t size;
    vm_region_basic_info_data_64_t info = {0};
    mach_msg_type_number_t count = VM_REGION_BASIC_INFO_COUNT_64;
    mach_port_t unused;
    if (vm_region_64(mach_task_self(), &start, &size, VM_REGION_BASIC_INFO_64, (vm_region_info_t)&info, &count,
                     &unused) != KERN_SUCCESS ||
        start > from || !(info.protection & VM_PROT_READ))
      return XT_ACCESS_NONE;
    if (!(info.protection & VM_PROT_WRITE)) access = XT_ACCESS_READ;
    if (start + size - 1 >= last) return access;
    from = (uintptr_t)(start + size);
  }
}

#else

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

/* The query of one mapping, from linux/fs.h of Linux 6.11; older headers do not have it. */
typedef struct {
  uint64_t size, query_flags, query_addr, vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
  uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
  uint64_t vma_name_addr, build_id_addr;
} procmap_query;
#define QUERY _IOWR('f', 17, procmap_query)
enum { QUERY_READABLE = 1, QUERY_WRITABLE = 2 };

/* One mapping: [start, end), and the access to all of it. */
typedef struct {
  uintptr_t start, end;
  xt_access access;
} area;

/* Adds the next mapping in the order of addresses. Returns false at a gap, and at a mapping that cannot be read. */
static bool extend(uintptr_t *from, xt_access *access, const area *next) {
  if (next->start > *from || next->access == XT_ACCESS_NONE) return false;
  if (next->access < *access) *access = next->access;
  *from = next->end;
  return true;
}

/* Returns false if the kernel does not have the query. */
static bool scan_by_query(int maps, uintptr_t from, uintptr_t last, xt_access *access) {
  for (*access = XT_ACCESS_WRITE; from - 1 < last;) {
    procmap_query query = {.size = sizeof query, .query_addr = from};
    if (ioctl(maps, QUERY, &query)) {
      if (errno != ENOENT) return false;
      *access = XT_ACCESS_NONE;
      return true;
    }
    bool readable = query.vma_flags & QUERY_READABLE, writable = query.vma_flags & QUERY_WRITABLE;
    area found = {query.vma_start, query.vma_end,
                  !readable  ? XT_ACCESS_NONE
                  : writable ? XT_ACCESS_WRITE
                             : XT_ACCESS_READ};
    if (extend(&from, access, &found)) continue;
    *access = XT_ACCESS_NONE;
    return true;
  }
  return true;
}

/* Parses "7f12e000-7f130000 rw-p 00000000 …". */
static bool parse_line(const char *line, area *out) {
  char read, write;
  if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %c%c", &out->start, &out->end, &read, &write) != 4) return false;
  out->access = read != 'r' ? XT_ACCESS_NONE : write != 'w' ? XT_ACCESS_READ : XT_ACCESS_WRITE;
  return true;
}

static xt_access scan_by_list(FILE *maps, uintptr_t from, uintptr_t last) {
  char line[512];
  area next;
  xt_access access = XT_ACCESS_WRITE;
  bool whole = true; /* whether the line begins in this buffer: paths can be long */
  while (from - 1 < last && fgets(line, sizeof line, maps)) {
    bool begins = whole;
    whole = strchr(line, '\n') != NULL;
    if (!begins || !parse_line(line, &next) || next.end <= from) continue;
    if (!extend(&from, &access, &next)) return XT_ACCESS_NONE;
  }
  return from - 1 < last ? XT_ACCESS_NONE : access;
}

/* Without /proc. msync walks the mappings without touching a page, and fails on unmapped pages. Writing the bytes at
 * both ends to a pipe fails if they cannot be read. */
static xt_access probe(uintptr_t from, uintptr_t last) {
  uintptr_t base = from & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
  int ends[2];
  if (msync((void *)base, last - base + 1, MS_ASYNC)) return XT_ACCESS_NONE;
  if (pipe2(ends, O_CLOEXEC)) return XT_ACCESS_WRITE; /* no descriptor left: the answer is not known */
  bool readable = write(ends[1], (const void *)from, 1) == 1 && write(ends[1], (const void *)last, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable ? XT_ACCESS_WRITE : XT_ACCESS_NONE;
}

static xt_access scan(uintptr_t from, uintptr_t last) {
  xt_access access;
  int descriptor = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0 && scan_by_query(descriptor, from, last, &access)) {
    close(descriptor);
    return access;
  }
  FILE *maps = descriptor < 0 ? NULL : fdopen(descriptor, "r");
  if (!maps) {
    if (descriptor >= 0) close(descriptor);
    return probe(from, last);
  }
  access = scan_by_list(maps, from, last);
  fclose(maps);
  return access;
}

#endif

xt_access xt_address_access(const void *data, size_t size) {
  uintptr_t from = (uintptr_t)data, last;
  if (!size) return XT_ACCESS_WRITE;
  if (!from || __builtin_add_overflow(from, size - 1, &last)) return XT_ACCESS_NONE;
  return scan(from, last);
}
