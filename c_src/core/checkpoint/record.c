#include "core/checkpoint/record.h"

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/printable.h"

enum {
  MAX_RATIO = 1032, /* the maximum compression ratio of deflate */
  MAX_NAME = 65535  /* of a record of a zip file */
};

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
  char brief[512], *full = brief;
  size_t *at = NULL, size = records->root_size + name_size;
  if (size > sizeof brief) full = size <= MAX_NAME ? malloc(size) : NULL;
  if (records->count && full) {
    memcpy(full, records->list[0].name, records->root_size);
    memcpy(full + records->root_size, name, name_size);
    at = xt_table_get(&records->names, full, size);
  }
  if (full != brief) free(full);
  if (!at) at = xt_table_get(&records->names, name, name_size);
  return at ? &records->list[*at] : NULL;
}

void xt_records_free(xt_records *records) {
  xt_table_free(&records->names);
  *records = (xt_records){0};
}

/* ---- Content ---- */

xt_status xt_record_verify(const xt_record *record, uint32_t crc, xt_error *error) {
  if (!record->has_crc || crc == record->crc) return XT_STATUS_ok;
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header,
                     "the record %s is damaged: its checksum is %08x, expected %08x; download the file again",
                     xt_printable_text(record->name, record->name_size).text, crc, record->crc);
}

xt_status xt_record_inflate(const xt_record *record, const uint8_t *packed, uint8_t *to, xt_error *error) {
  struct libdeflate_decompressor *inflater = libdeflate_alloc_decompressor();
  if (!inflater) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while decompressing a record");
  size_t actual = 0;
  enum libdeflate_result result =
      libdeflate_deflate_decompress(inflater, packed, record->packed, to, record->size, &actual);
  libdeflate_free_decompressor(inflater);
  if (result != LIBDEFLATE_SUCCESS || actual != record->size)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header,
                       "the compressed data of the record %s is invalid; download the file again",
                       xt_printable_text(record->name, record->name_size).text);
  return xt_record_verify(record, libdeflate_crc32(0, to, record->size), error);
}

xt_status xt_record_check_method(const xt_record *record, xt_error *error) {
  if (record->method != XT_RECORD_STORED && record->method != XT_RECORD_DEFLATED)
    return xt_error_at(
        error, XT_STATUS_unsupported, (int64_t)record->header,
        "the record %s uses the unsupported compression method %u; create the zip file again with deflate",
        xt_printable_text(record->name, record->name_size).text, record->method);
  bool too_large = record->packed > record->size && record->packed - record->size > record->size / 1000 + 64;
  if (record->method == XT_RECORD_DEFLATED && too_large)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header,
                       "invalid zip file: the record %s is much larger compressed than uncompressed",
                       xt_printable_text(record->name, record->name_size).text);
  if (record->method == XT_RECORD_DEFLATED && record->size / MAX_RATIO > record->packed)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header,
                       "invalid zip file: the record %s has an impossible compression ratio",
                       xt_printable_text(record->name, record->name_size).text);
  return XT_STATUS_ok;
}
