#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>

/* A header stands right before every block. Large blocks are mappings of their own:
 *
 *   map ……… [header] data (2 MiB aligned) …………… end
 */
typedef struct {
  size_t size; /* what the caller asked for, and what is counted */
  void *map;   /* NULL: the block came from malloc */
  size_t map_size;
} header;

enum {
  ALIGNMENT = 64, /* also the room of the header, so that data keeps the alignment */
  PAGE = 4096,
  HUGE_PAGE = 2 << 20,
  LARGE = 1 << 20, /* from here on a block is a mapping */
  SLICE = 4 << 20  /* a few MiB are given back in about a millisecond */
};
_Static_assert(sizeof(header) <= ALIGNMENT, "the header fits its room");

xt_memory_counters xt_memory_live;
static atomic_int_least64_t budget = INT64_MAX;
static _Thread_local int64_t taken;
static _Thread_local xt_refused refused;

void xt_memory_set_budget(int64_t bytes) { atomic_store(&budget, bytes); }
int64_t xt_memory_budget(void) { return atomic_load(&budget); }

xt_refused xt_memory_refused(void) {
  xt_refused answer = refused;
  refused = XT_REFUSED_NOT;
  return answer;
}

int64_t xt_memory_taken(void) {
  int64_t answer = taken;
  taken = 0;
  return answer;
}

void xt_memory_add_taken(int64_t bytes) { taken += bytes; }

static header *header_of(void *block) { return (header *)((char *)block - ALIGNMENT); }

static void *alloc_small(size_t size) {
  char *start = NULL;
  if (posix_memalign((void **)&start, ALIGNMENT, ALIGNMENT + size)) return NULL;
  *(header *)start = (header){size, NULL, 0};
  return start + ALIGNMENT;
}

static void *alloc_large(size_t size) {
  size_t align = size >= HUGE_PAGE ? HUGE_PAGE : PAGE;
  size_t map_size = size + align + PAGE;
  if (map_size < size) return NULL;
  char *map = mmap(NULL, map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return NULL;
  char *data = (char *)(((uintptr_t)map + PAGE + align - 1) & ~(uintptr_t)(align - 1));
  if (align == HUGE_PAGE) madvise(data, size, MADV_HUGEPAGE);
  *header_of(data) = (header){size, map, map_size};
  return data;
}

void *xt_memory_alloc(size_t size) {
  int64_t wanted = size > INT64_MAX / 2 ? INT64_MAX / 2 : (int64_t)size;
  if (atomic_fetch_add(&xt_memory_live.bytes, wanted) > atomic_load(&budget) - wanted) {
    refused = XT_REFUSED_BUDGET;
    atomic_fetch_sub(&xt_memory_live.bytes, wanted);
    return NULL;
  }
  void *block = size >= LARGE ? alloc_large(size) : alloc_small(size);
  if (!block) {
    refused = XT_REFUSED_MACHINE;
    atomic_fetch_sub(&xt_memory_live.bytes, wanted);
    return NULL;
  }
  taken += wanted;
  return block;
}

static void free_large(const header *large, char *data) {
  /* The copy outlives the page it was read from. */
  header map = *large;
  for (size_t at = 0; at < map.size; at += SLICE) {
    size_t length = map.size - at < SLICE ? map.size - at : SLICE;
    madvise(data + at, length, MADV_DONTNEED);
  }
  munmap(map.map, map.map_size);
}

void xt_memory_free(void *block) {
  if (!block) return;
  header *head = header_of(block);
  atomic_fetch_sub(&xt_memory_live.bytes, (int64_t)head->size);
  if (head->map) free_large(head, block);
  else free(head);
}
