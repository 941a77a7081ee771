#include "core/checkpoint/record.h"

#include <string.h>

bool xt_records_reserve(xt_records *records, xt_arena *arena, size_t count, bool named) {
  records->list = xt_arena_alloc(arena, count + 1, sizeof *records->list);
  records->capacity = count;
  records->unnamed = !named;
  return records->list && (!named || xt_table_reserve(&records->names, count));
}

xt_record *xt_records_add(xt_records *records, const char *name, size_t name_size, bool *duplicate) {
  bool is_new = true;
  *duplicate = false;
  if (records->count == records->capacity) return NULL;
  if (!records->unnamed) {
    size_t *at = xt_table_put(&records->names, name, name_size, &is_new);
    *duplicate = !is_new;
    if (!at || !is_new) return NULL;
    *at = records->count;
  }
  xt_record *record = &records->list[records->count++];
  record->name = name;
  record->name_size = name_size;
  return record;
}

void xt_record_set_data(xt_record *record, uint64_t data_offset, uint64_t size) {
  record->header = data_offset;
  record->packed = record->size = size;
  record->end = data_offset + size;
  atomic_store(&record->data_offset, data_offset);
}

xt_record *xt_records_add_stored(xt_records *records, const char *name, size_t name_size, uint64_t data_offset,
                                 uint64_t size, bool *duplicate) {
  xt_record *record = xt_records_add(records, name, name_size, duplicate);
  if (record) xt_record_set_data(record, data_offset, size);
  return record;
}

xt_record *xt_records_find(const xt_records *records, const char *name, size_t name_size) {
  char full[512];
  size_t *at = NULL;
  if (records->count && records->root_size + name_size <= sizeof full) {
    memcpy(full, records->list[0].name, records->root_size);
    memcpy(full + records->root_size, name, name_size);
    at = xt_table_get(&records->names, full, records->root_size + name_size);
  }
  if (!at) at = xt_table_get(&records->names, name, name_size);
  return at ? &records->list[*at] : NULL;
}

void xt_records_free(xt_records *records) {
  xt_table_free(&records->names);
  *records = (xt_records){0};
}
