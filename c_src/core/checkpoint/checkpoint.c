#include "core/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/format.h"

void xt_checkpoint_begin(xt_checkpoint *c, uint64_t file_size, uint64_t base, const xt_limits *limits, bool strict,
                         bool verify) {
  memset(c, 0, sizeof *c);
  c->file_size = file_size;
  c->base = base;
  c->arena.allowance = &c->allowance;
  c->storages = (xt_storages){.arena = &c->arena, .max_tensor_bytes = limits->tensor_bytes};
  c->directory.names.arena = c->index.names.arena = c->storages.by_key.arena = &c->arena;
  c->opening = xt_opening_new(c, limits, strict, verify);
}

const char *xt_checkpoint_format(const xt_checkpoint *c) { return c->is_torchscript ? "torchscript" : c->format->name; }

xt_record *xt_checkpoint_find(const xt_checkpoint *c, const char *name, size_t size) {
  xt_record *record = xt_records_find(&c->directory, name, size);
  if (record) return record;
  if (size > 5 && !memcmp(name, "data/", 5)) name += 5, size -= 5;
  for (size_t i = 0; i < c->storages.count; i++)
    if (c->storages.list[i].key_size == size && !memcmp(c->storages.list[i].key, name, size)) return c->records[i];
  return NULL;
}

xt_need xt_checkpoint_locate_need(const xt_checkpoint *c, const xt_record *record) {
  if (atomic_load(&record->data_offset) || !c->format->header_size) return (xt_need){0, 0, NULL};
  return (xt_need){record->header, c->format->header_size(record), NULL};
}

xt_status xt_checkpoint_locate(const xt_checkpoint *c, xt_record *record, const uint8_t *header, uint64_t *data,
                               xt_error *error) {
  *data = atomic_load(&record->data_offset);
  if (*data || !c->format->locate) return XT_STATUS_ok;
  xt_status status = c->format->locate(record, header, data, error);
  if (status == XT_STATUS_ok) atomic_store(&record->data_offset, *data);
  return status;
}

xt_need xt_checkpoint_record_range(const xt_checkpoint *c, const xt_record *record) {
  uint64_t data = atomic_load(&record->data_offset), available = record->end - record->header;
  if (data || !c->format->header_size) return (xt_need){data, record->packed, NULL};
  uint64_t size = c->format->header_size(record) + c->format->max_padding + record->packed;
  return (xt_need){record->header, size < available ? size : available, NULL};
}

bool xt_checkpoint_needs_swap(const xt_checkpoint *c, uint32_t storage) {
  const xt_storage *s = &c->storages.list[storage];
  bool big = s->big_endian || (!s->data && c->big_endian);
  return big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

void xt_checkpoint_free(xt_checkpoint *c) {
  xt_opening_free(c);
  for (size_t i = 0; i < c->buffer_count; i++) free(c->buffers[i]);
  free(c->buffers);
  xt_region_drop(c->memory);
  xt_index_free(&c->index);
  xt_storages_free(&c->storages);
  xt_records_free(&c->directory);
  xt_arena_free(&c->arena);
  xt_allowance_return(&c->allowance, c->allowance.used); /* the buffers */
  memset(c, 0, sizeof *c);
}
