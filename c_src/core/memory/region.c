#include "core/memory/region.h"

#include <stdlib.h>

#include "core/memory/memory.h"
#include "core/os/mapping.h"

enum { PAGE = 4096, ALIGNMENT = 64 };

static void free_region(xt_reapable *self);
static void free_owner(xt_region *self) { xt_memory_free(self->owner); }

static void init(xt_region *region, void *data, size_t size, void *owner, void (*release)(xt_region *self)) {
  region->reapable.run = free_region;
  atomic_init(&region->references, 1);
  region->is_part = false;
  region->data = data;
  region->size = size;
  region->owner = owner;
  region->release = release;
}

xt_region *xt_region_foreign(void *data, size_t size, void *owner, void (*release)(xt_region *self)) {
  xt_region *region = malloc(sizeof *region);
  if (region) init(region, data, size, owner, release);
  return region;
}

/* Where the parts of a slab begin: after its memory. */
static xt_region *parts_of(uint8_t *data, size_t size) {
  uintptr_t end = (uintptr_t)(data + size), rest = end % _Alignof(xt_region);
  return (xt_region *)(data + size + (rest ? _Alignof(xt_region) - rest : 0));
}

xt_region *xt_region_new(size_t size, uint64_t offset) { return xt_region_new_slab(size, offset, 0); }

xt_region *xt_region_new_slab(size_t size, uint64_t offset, size_t parts) {
  size_t total, bytes, shift = size >= PAGE ? offset % PAGE : offset % ALIGNMENT;
  if (__builtin_add_overflow(size, shift, &total) || __builtin_mul_overflow(parts, sizeof(xt_region), &bytes) ||
      __builtin_add_overflow(total, bytes ? bytes + _Alignof(xt_region) : 0, &total))
    return NULL;
  char *block = xt_memory_alloc(total);
  if (!block) return NULL;
  xt_region *region = xt_region_foreign(block + shift, size, block, free_owner);
  if (!region) xt_memory_free(block);
  return region;
}

static void drop_slab(xt_region *self) { xt_region_drop(self->owner); }

xt_region *xt_region_new_views(xt_region *memory, size_t parts) {
  size_t bytes;
  if (__builtin_mul_overflow(parts + 1, sizeof(xt_region), &bytes)) return NULL;
  xt_region *slab = malloc(bytes);
  if (slab) init(slab, slab + 1, 0, xt_region_keep(memory), drop_slab);
  return slab;
}

xt_region *xt_region_part(xt_region *slab, size_t number, uint8_t *data, size_t size) {
  return xt_region_part_at(slab, parts_of(slab->data, slab->size) + number, data, size);
}

xt_region *xt_region_part_at(xt_region *slab, void *at, uint8_t *data, size_t size) {
  xt_region *part = at;
  init(part, data, size, xt_region_keep(slab), drop_slab);
  part->is_part = true;
  return part;
}

static void unmap(xt_region *self) {
  xt_mapping_close(self->data, self->size);
  atomic_fetch_sub(&xt_memory_live.mapped, (int64_t)self->size);
}

xt_status xt_region_map(const xt_file *file, xt_region **out, xt_error *error) {
  void *data;
  xt_status status = xt_mapping_open(file, &data, error);
  if (status != XT_STATUS_ok) return status;
  xt_region *region = xt_region_foreign(data, file->size, NULL, unmap);
  if (!region) {
    xt_mapping_close(data, file->size);
    return xt_error_set(error, XT_STATUS_no_memory, "out of memory while mapping the file");
  }
  atomic_fetch_add(&xt_memory_live.mapped, (int64_t)file->size);
  *out = region;
  return XT_STATUS_ok;
}

xt_status xt_region_refused(xt_error *error) {
  if (xt_memory_refused() == XT_REFUSED_BUDGET) return xt_error_budget(error);
  return xt_error_set(error, XT_STATUS_no_memory, "the system is out of memory");
}

xt_region *xt_region_keep(xt_region *region) {
  atomic_fetch_add(&region->references, 1);
  return region;
}

static void free_region(xt_reapable *self) {
  xt_region *region = (xt_region *)self;
  bool is_part = region->is_part;
  if (region->release) region->release(region);
  if (!is_part) free(region);
}

static bool was_last(xt_region *region) { return region && atomic_fetch_sub(&region->references, 1) == 1; }

void xt_region_drop(void *object) {
  xt_region *region = object;
  if (was_last(region)) free_region(&region->reapable);
}

void xt_region_drop_later(xt_region *region) {
  if (was_last(region)) xt_reaper_push(&region->reapable);
}
