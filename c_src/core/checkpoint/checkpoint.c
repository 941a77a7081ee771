#include "core/checkpoint/checkpoint.h"
#include "core/base/printable.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "core/formats/detect.h"
#include "core/formats/format.h"
#include "core/formats/zip.h"

/* The maximum compression ratio of deflate. */
enum { MAX_RATIO = 1032 };

/* How often in a row a format may request no bytes. */
enum { MAX_EMPTY_STEPS = 8 };

void xt_checkpoint_begin(xt_checkpoint *c, uint64_t file_size, uint64_t base, const xt_limits *limits, bool strict,
                         bool verify, xt_error *error) {
  memset(c, 0, sizeof *c);
  c->limits = *limits;
  c->verify = verify;
  c->file_size = file_size;
  c->base = base;
  xt_checkpoint_set_present(c, file_size);
  c->arena.allowance = &c->allowance;
  c->directory.names.allowance = c->index.names.allowance = &c->allowance;
  c->rebuild =
      (xt_rebuild){.arena = &c->arena, .strict = strict, .max_tensor_bytes = limits->tensor_bytes, .error = error};
  c->rebuild.by_key.allowance = c->rebuild.labels.allowance = &c->allowance;
}

void xt_checkpoint_set_present(xt_checkpoint *c, uint64_t bytes) {
  c->allowance.limit = c->limits.memory ? c->limits.memory : xt_allowance_for(bytes);
}

const char *xt_checkpoint_format(const xt_checkpoint *c) { return c->is_torchscript ? "torchscript" : c->format->name; }

/* ---- Records ---- */

xt_record *xt_checkpoint_find(const xt_checkpoint *c, const char *name, size_t size) {
  xt_record *record = xt_records_find(&c->directory, name, size);
  if (record) return record;
  if (size > 5 && !memcmp(name, "data/", 5)) name += 5, size -= 5;
  for (size_t i = 0; i < c->rebuild.storage_count; i++)
    if (c->rebuild.storages[i].key_size == size && !memcmp(c->rebuild.storages[i].key, name, size))
      return c->records[i];
  return NULL;
}

xt_need xt_checkpoint_header_need(const xt_record *record) {
  return (xt_need){record->header, XT_ZIP_LOCAL_SIZE + record->name_size, NULL};
}

xt_status xt_checkpoint_check_header(xt_record *record, const uint8_t *local, uint64_t *data, xt_error *error) {
  xt_status status = xt_zip_check_local(record, local, data, error);
  if (status == XT_STATUS_ok) atomic_store(&record->data_offset, *data);
  return status;
}

bool xt_checkpoint_needs_swap(const xt_checkpoint *c, uint32_t storage) {
  const xt_storage *s = &c->rebuild.storages[storage];
  bool big = s->data ? s->big_endian : c->big_endian;
  return big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

xt_status xt_checkpoint_verify(const xt_record *record, uint32_t crc, xt_error *error) {
  if (!record->has_crc || crc == record->crc) return XT_STATUS_ok;
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header,
                     "the record %s is damaged: its checksum is %08x, expected %08x; download the file again",
                     xt_printable_text(record->name, record->name_size).text, crc, record->crc);
}

xt_status xt_checkpoint_inflate(const xt_record *record, const uint8_t *packed, uint8_t *to, xt_error *error) {
  struct libdeflate_decompressor *inflater = libdeflate_alloc_decompressor();
  if (!inflater) return xt_open_no_memory(error);
  size_t actual = 0;
  enum libdeflate_result result =
      libdeflate_deflate_decompress(inflater, packed, record->packed, to, record->size, &actual);
  libdeflate_free_decompressor(inflater);
  if (result != LIBDEFLATE_SUCCESS || actual != record->size)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header,
                       "the compressed data of the record %s is invalid; download the file again",
                       xt_printable_text(record->name, record->name_size).text);
  return xt_checkpoint_verify(record, libdeflate_crc32(0, to, record->size), error);
}

xt_status xt_checkpoint_check_method(const xt_record *record, xt_error *error) {
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

/* ---- Opening ---- */

static xt_status step(xt_checkpoint *c, xt_need *need, xt_error *error) {
  if (c->format) return c->format->step(c, need, error);
  uint64_t rest = c->file_size > c->base ? c->file_size - c->base : 0;
  if (!c->head) {
    c->head_size = rest < XT_DETECT_SIZE ? rest : XT_DETECT_SIZE;
    if (c->base && !rest)
      return xt_error_set(error, XT_STATUS_bad_argument,
                          "offset %" PRIu64 " is at or past the end of the file, which has %" PRIu64 " bytes", c->base,
                          c->file_size);
    if (!c->head_size) return xt_detect(NULL, 0, &c->format, error);
    return xt_open_request(c, &c->head, c->base, c->head_size, need, error);
  }
  xt_status status = xt_detect(c->head, c->head_size, &c->format, error);
  if (status != XT_STATUS_ok) return status;
  if (c->base && !c->format->at_any_offset)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "found the format %s at offset %" PRIu64 ", but it is only supported at offset 0",
                        c->format->name, c->base);
  return c->format->step(c, need, error);
}

/* Fills the needs of a decompressed gzip file itself. */
static xt_status run(xt_checkpoint *c, xt_need *need, xt_error *error) {
  if (c->file_size >= XT_INLINE) /* such offsets denote addresses */
    return xt_error_set(error, XT_STATUS_limit,
                        "the file is too large: %" PRIu64 " bytes; files of up to 2 ** 62 bytes are supported",
                        c->file_size);
  for (int empty_steps = 0; empty_steps < MAX_EMPTY_STEPS;) {
    *need = (xt_need){0, 0, NULL};
    xt_status status = step(c, need, error);
    if (status != XT_STATUS_ok || (!need->size && c->root)) return status;
    if (!need->size) empty_steps++; /* a need of 0 bytes is filled at once */
    else if (!c->unpacked) return status;
    else memcpy(need->to, c->memory->data + need->offset, need->size);
  }
  return xt_error_set(error, XT_STATUS_corrupt, "the file does not contain an object");
}

xt_status xt_checkpoint_step(xt_checkpoint *c, xt_need *need, xt_error *error) {
  return xt_allowance_explain(&c->allowance, run(c, need, error), error);
}

void xt_checkpoint_free(xt_checkpoint *c) {
  for (size_t i = 0; i < c->buffer_count; i++) free(c->buffers[i]);
  free(c->buffers);
  xt_region_drop(c->memory);
  xt_index_free(&c->index);
  xt_rebuild_free(&c->rebuild);
  xt_records_free(&c->directory);
  xt_arena_free(&c->arena);
  xt_allowance_return(&c->allowance, c->allowance.used); /* the buffers */
  memset(c, 0, sizeof *c);
}
