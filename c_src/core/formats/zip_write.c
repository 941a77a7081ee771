/* Writes a zip checkpoint in the same layout as torch 2.7 and later: uncompressed, aligned records, each followed by a
 * descriptor with its checksum. */
#include "core/formats/zip.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 64, FLAGS = 0x0808, FLAGS_EMPTY = 0x0800, ZIP64_LIMIT = 0xFFFFFFFF };

static uint32_t saturate(uint64_t value) { return value >= ZIP64_LIMIT ? ZIP64_LIMIT : (uint32_t)value; }

/* An npz file has no root directory. */
static bool has_root(const xt_saver *s) { return s->plan->format == &xt_zip_write; }

static void put_name(const xt_saver *s, xt_buffer *out, const char *name) {
  if (has_root(s)) {
    xt_buffer_text(out, s->plan->root);
    xt_buffer_byte(out, '/');
  }
  xt_buffer_text(out, name);
}

static size_t name_size(const xt_saver *s, const char *name) {
  return (has_root(s) ? strlen(s->plan->root) + 1 : 0) + strlen(name);
}

/* As in files of torch, the 32-bit sizes are 0 even if a zip64 extra field contains the values. */
void xt_zip_put_header(xt_saver *s, const char *name, uint64_t size) {
  uint64_t at = xt_saver_at(s);
  size_t zip64_size = (size >= ZIP64_LIMIT ? 16u : 0u) + (at >= ZIP64_LIMIT ? 8u : 0u);
  if (zip64_size) zip64_size += 4;
  uint64_t start = at + XT_ZIP_LOCAL_SIZE + name_size(s, name) + zip64_size + 4;
  size_t padding = (size_t)((ALIGNMENT - start % ALIGNMENT) % ALIGNMENT);
  xt_buffer *out = &s->out;
  xt_buffer_put(out, "PK\3\4\0\0", 6);
  xt_buffer_le(out, size ? FLAGS : FLAGS_EMPTY, 2);
  xt_buffer_fill(out, 0, 18); /* method, time, date, checksum, sizes */
  xt_buffer_le(out, name_size(s, name), 2);
  xt_buffer_le(out, zip64_size + 4 + padding, 2);
  put_name(s, out, name);
  if (zip64_size) {
    xt_buffer_le(out, 1, 2);
    xt_buffer_le(out, zip64_size - 4, 2);
    if (size >= ZIP64_LIMIT) xt_buffer_le(out, size, 8), xt_buffer_le(out, 0, 8);
    if (at >= ZIP64_LIMIT) xt_buffer_le(out, at, 8);
  }
  xt_buffer_put(out, "FB", 2);
  xt_buffer_le(out, padding, 2);
  xt_buffer_fill(out, 'Z', padding);
}

static void put_central(xt_saver *s, const char *name, uint64_t size, uint32_t crc, uint64_t at) {
  xt_buffer *out = &s->central;
  size_t zip64_size = (size >= ZIP64_LIMIT ? 16u : 0u) + (at >= ZIP64_LIMIT ? 8u : 0u);
  xt_buffer_put(out, "PK\1\2\0\0\0\0", 8);
  xt_buffer_le(out, size ? FLAGS : FLAGS_EMPTY, 2);
  xt_buffer_fill(out, 0, 6);
  xt_buffer_le(out, crc, 4);
  xt_buffer_le(out, saturate(size), 4);
  xt_buffer_le(out, saturate(size), 4);
  xt_buffer_le(out, name_size(s, name), 2);
  xt_buffer_le(out, zip64_size ? zip64_size + 4 : 0, 2);
  xt_buffer_fill(out, 0, 10);
  xt_buffer_le(out, saturate(at), 4);
  put_name(s, out, name);
  if (zip64_size) {
    xt_buffer_le(out, 1, 2);
    xt_buffer_le(out, zip64_size, 2);
    if (size >= ZIP64_LIMIT) xt_buffer_le(out, size, 8), xt_buffer_le(out, size, 8);
    if (at >= ZIP64_LIMIT) xt_buffer_le(out, at, 8);
  }
}

/* Writes the descriptor, adds the entry of the central directory and updates the hashes of the serialization id. */
void xt_zip_finish_record(xt_saver *s, const char *name, uint64_t size, uint32_t crc, uint64_t at) {
  if (size) {
    size_t width = size >= ZIP64_LIMIT || at >= ZIP64_LIMIT ? 8 : 4;
    xt_buffer_put(&s->out, "PK\7\10", 4);
    xt_buffer_le(&s->out, crc, 4);
    xt_buffer_le(&s->out, size, width);
    xt_buffer_le(&s->out, size, width);
  }
  put_central(s, name, size, crc, at);
  s->records++;
  for (const char *c = name; *c; c++) s->names_hash = (s->names_hash ^ (uint8_t)*c) * 1099511628211u;
  s->crc_hash = (s->crc_hash ^ crc) * 1099511628211u + 1;
}

static void put_record(xt_saver *s, const char *name, const void *data, size_t size) {
  uint64_t at = xt_saver_at(s);
  xt_zip_put_header(s, name, size);
  xt_saver_append(s, data, size);
  xt_zip_finish_record(s, name, size, libdeflate_crc32(0, data, size), at);
}

static void begin(xt_saver *s) {
  put_record(s, "data.pkl", s->plan->pickle.data, s->plan->pickle.size);
  put_record(s, ".format_version", "1", 1);
  put_record(s, ".storage_alignment", "64", 2);
  put_record(s, "byteorder", "little", 6);
}

enum { MAX_NAME = sizeof "data/" + sizeof((xt_payload *)0)->key };

static void record_name(const xt_saver *s, size_t i, char name[MAX_NAME]) {
  memcpy(name, "data/", 5);
  memcpy(name + 5, s->plan->payloads[i].key, sizeof s->plan->payloads[i].key);
}

static void before(xt_saver *s, size_t i) {
  char name[MAX_NAME];
  record_name(s, i, name);
  s->header = xt_saver_at(s);
  xt_zip_put_header(s, name, s->plan->payloads[i].bytes);
}

static void after(xt_saver *s, size_t i, uint32_t crc) {
  char name[MAX_NAME];
  record_name(s, i, name);
  xt_zip_finish_record(s, name, s->plan->payloads[i].bytes, crc, s->header);
}

static void end(xt_saver *s) {
  char id[41];
  put_record(s, "version", "3\n", 2);
  snprintf(id, sizeof id, "%020" PRIu64 "%020" PRIu64, s->names_hash, s->crc_hash);
  put_record(s, ".data/serialization_id", id, 40);
  xt_zip_put_end(s);
}

void xt_zip_put_end(xt_saver *s) {
  uint64_t directory = xt_saver_at(s), size = s->central.size;
  xt_buffer *out = &s->out;
  xt_saver_append(s, s->central.data, s->central.size);
  uint64_t zip64_end = xt_saver_at(s);
  xt_buffer_put(out, "PK\6\6", 4);
  xt_buffer_le(out, 44, 8);
  xt_buffer_le(out, 0x031e, 2);
  xt_buffer_le(out, 45, 2);
  xt_buffer_fill(out, 0, 8);
  xt_buffer_le(out, s->records, 8);
  xt_buffer_le(out, s->records, 8);
  xt_buffer_le(out, size, 8);
  xt_buffer_le(out, directory, 8);
  xt_buffer_put(out, "PK\6\7\0\0\0\0", 8);
  xt_buffer_le(out, zip64_end, 8);
  xt_buffer_le(out, 1, 4);
  xt_buffer_put(out, "PK\5\6\0\0\0\0", 8);
  uint64_t records = s->records < 0xFFFF ? s->records : 0xFFFF;
  xt_buffer_le(out, records, 2);
  xt_buffer_le(out, records, 2);
  xt_buffer_le(out, saturate(size), 4);
  xt_buffer_le(out, saturate(directory), 4);
  xt_buffer_le(out, 0, 2);
}

const xt_format_writer xt_zip_write = {
    .name = "zip", .crc = true, .begin = begin, .before = before, .after = after, .end = end};
