#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "reaper.h"
#include "spare.h"

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
  LARGE = 1 << 20 /* from here on a block is a mapping */
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

static void *as_block(xt_block block, size_t size) {
  *header_of(block.data) = (header){size, block.map, block.map_size};
  return block.data;
}

static void *alloc_large(size_t size) {
  size_t align = size >= HUGE_PAGE ? HUGE_PAGE : PAGE;
  size_t map_size = size + align + PAGE;
  xt_block block;
  if (map_size < size) return NULL;
  if (align == HUGE_PAGE && xt_spare_take(size, &block)) return as_block(block, size);
  char *map = mmap(NULL, map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return NULL;
  char *data = (char *)(((uintptr_t)map + PAGE + align - 1) & ~(uintptr_t)(align - 1));
  if (align == HUGE_PAGE) madvise(data, size, MADV_HUGEPAGE);
  return as_block((xt_block){map, map_size, data}, size);
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
  xt_block block = {large->map, large->map_size, data};
  if (large->size < HUGE_PAGE || !xt_spare_put(block)) xt_block_free(block);
  else xt_reaper_wake(); /* it sees to it that nothing is spared for long */
}

void xt_memory_free(void *block) {
  if (!block) return;
  header *head = header_of(block);
  atomic_fetch_sub(&xt_memory_live.bytes, (int64_t)head->size);
  if (head->map) free_large(head, block);
  else free(head);
}
