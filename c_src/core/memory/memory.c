#include "core/memory/memory.h"

#include <stdlib.h>

#include "core/memory/block_cache.h"
#include "core/os/pages.h"

/* Every allocation has an xt_block in front of its data. Small ones come from malloc and use only its size. */
enum {
  ALIGNMENT = XT_BLOCK_ROOM,
  PAGE = 4096,
  HUGE_PAGE = 2 << 20,
  LARGE = 1 << 20,                      /* from this size on, an allocation is a separate mapping */
  MIN_HUGE = HUGE_PAGE - HUGE_PAGE / 16 /* from this size on, it is made of huge pages, and has at least one */
};

xt_memory_counters xt_memory_live;
static atomic_int_least64_t budget = INT64_MAX;
static _Thread_local int64_t taken;
static _Thread_local xt_refused refused;

void xt_memory_set_budget(int64_t bytes) { atomic_store(&budget, bytes); }
int64_t xt_memory_budget(void) { return atomic_load(&budget); }

xt_refused xt_memory_refused(void) {
  xt_refused reason = refused;
  refused = XT_REFUSED_NOT;
  return reason;
}

int64_t xt_memory_taken(void) {
  int64_t bytes = taken;
  taken = 0;
  return bytes;
}

void xt_memory_take(int64_t bytes) { taken += bytes; }

static xt_block *block_of(void *data) { return (xt_block *)((char *)data - XT_BLOCK_ROOM); }

static void *alloc_small(size_t size) {
  xt_block *block = NULL;
  if (posix_memalign((void **)&block, ALIGNMENT, ALIGNMENT + size)) return NULL;
  *block = (xt_block){.size = size};
  return xt_block_data(block);
}

static xt_block *map_block(size_t size) {
  if (size > SIZE_MAX / 2) return NULL;
  size_t align = size >= MIN_HUGE ? HUGE_PAGE : PAGE;
  if (align > size) size = align;
  size_t map_size = size + align + PAGE;
  char *map = xt_pages_map(map_size);
  if (!map) return NULL;
  char *data = (char *)(((uintptr_t)map + PAGE + align - 1) & ~(uintptr_t)(align - 1));
  if (align == HUGE_PAGE) xt_pages_prefer_huge(data, size);
  xt_block *block = block_of(data);
  *block = (xt_block){.map = map, .map_size = map_size};
  return block;
}

static void *alloc_large(size_t size) {
  xt_block *block = size >= MIN_HUGE ? xt_block_cache_take(size) : NULL;
  if (!block) block = map_block(size);
  if (!block) return NULL;
  block->size = size;
  return xt_block_data(block);
}

bool xt_memory_charge(int64_t bytes) {
  if (atomic_fetch_add(&xt_memory_live.bytes, bytes) > atomic_load(&budget) - bytes) {
    refused = XT_REFUSED_BUDGET;
    xt_memory_discharge(bytes);
    return false;
  }
  taken += bytes;
  return true;
}

void xt_memory_discharge(int64_t bytes) { atomic_fetch_sub(&xt_memory_live.bytes, bytes); }

void *xt_memory_alloc(size_t size) {
  int64_t wanted = size > INT64_MAX / 2 ? INT64_MAX / 2 : (int64_t)size;
  if (!xt_memory_charge(wanted)) return NULL;
  void *data = size >= LARGE ? alloc_large(size) : alloc_small(size);
  if (data) return data;
  refused = XT_REFUSED_MACHINE;
  xt_memory_discharge(wanted);
  taken -= wanted;
  return NULL;
}

void xt_memory_free(void *data) {
  if (!data) return;
  xt_block *block = block_of(data);
  xt_memory_discharge((int64_t)block->size);
  if (!block->map) free(block);
  else if (block->size < MIN_HUGE) xt_block_free(block);
  else xt_block_cache_put(block);
}
