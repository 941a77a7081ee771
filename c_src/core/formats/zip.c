#include "core/formats/zip.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cursor.h"

enum {
  END_SIZE = 22,
  LOCATOR_SIZE = 20,
  END64_SIZE = 56,
  CENTRAL_SIZE = 46,
  FLAG_ENCRYPTED = 1,
  FLAG_DESCRIPTOR = 8,
  FLAG_STRONG = 64
};

static bool is(const uint8_t *bytes, const char *signature) { return !memcmp(bytes, signature, 4); }

/* ---- The end record ---- */

typedef struct {
  uint64_t at; /* offset in the file */
  uint64_t entries, size, offset;
} end_record;

/* The plain record says 0xFFFF… where the number is in the zip64 one; where it does not, both must agree. */
static bool agrees(uint64_t plain, uint64_t wide, uint64_t saturated) { return plain == saturated || plain == wide; }

static xt_status read_end(const uint8_t *tail, uint64_t tail_at, size_t at, end_record *end, xt_error *error) {
  const uint8_t *record = tail + at;
  end->at = tail_at + at;
  uint64_t disk = xt_le(record + 4, 2), cd_disk = xt_le(record + 6, 2), here = xt_le(record + 8, 2);
  end->entries = xt_le(record + 10, 2);
  end->size = xt_le(record + 12, 4);
  end->offset = xt_le(record + 16, 4);
  uint64_t before = end->at;
  if (at >= LOCATOR_SIZE && is(record - LOCATOR_SIZE, "PK\6\7")) {
    uint64_t wide_at = xt_le(record - LOCATOR_SIZE + 8, 8);
    if (wide_at < tail_at || wide_at - tail_at > at - LOCATOR_SIZE ||
        at - LOCATOR_SIZE - (wide_at - tail_at) < END64_SIZE || !is(tail + (wide_at - tail_at), "PK\6\6"))
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)(end->at - LOCATOR_SIZE),
                         "the zip64 locator points to no zip64 end record");
    const uint8_t *wide = tail + (wide_at - tail_at);
    uint64_t entries = xt_le(wide + 32, 8), size = xt_le(wide + 40, 8), offset = xt_le(wide + 48, 8);
    if (!agrees(end->entries, entries, 0xFFFF) || !agrees(end->size, size, 0xFFFFFFFF) ||
        !agrees(end->offset, offset, 0xFFFFFFFF) || xt_le(wide + 24, 8) != entries)
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)wide_at,
                         "the two end records of the zip contradict each other");
    end->entries = entries, end->size = size, end->offset = offset;
    before = wide_at;
  } else if (end->entries == 0xFFFF || end->size == 0xFFFFFFFF || end->offset == 0xFFFFFFFF) {
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)end->at,
                       "the zip's end record needs a zip64 record, and there is none");
  }
  if ((disk && disk != 0xFFFF) || (cd_disk && cd_disk != 0xFFFF) || (here != 0xFFFF && here != (end->entries & 0xFFFF)))
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)end->at, "the zip is split over several files");
  if (end->offset > before || end->size > before - end->offset)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)end->at, "the zip's directory lies outside the file");
  if (end->entries > end->size / CENTRAL_SIZE)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)end->at,
                       "the zip counts more entries than its directory has room for");
  return XT_STATUS_ok;
}

xt_status xt_zip_find_directory(xt_zip *zip, const uint8_t *tail, size_t tail_size, uint64_t file_size,
                                xt_error *error) {
  uint64_t tail_at = file_size - tail_size;
  end_record end = {0};
  bool found = false;
  for (size_t at = tail_size < END_SIZE ? 0 : tail_size - END_SIZE + 1; at-- > 0;) {
    if (tail[at] != 'P' || !is(tail + at, "PK\5\6")) continue;
    if (!found) {
      xt_status status = read_end(tail, tail_at, at, &end, error);
      if (status != XT_STATUS_ok) return status;
      found = true;
      continue;
    }
    /* A second one is fine inside a record's data (a checkpoint within a tensor), and nowhere else. */
    if (tail_at + at >= end.offset)
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)(tail_at + at),
                         "the zip has two end records: two readers could see two archives");
    break;
  }
  if (!found)
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)file_size,
                       "the file begins like a zip and has no end record: most often an incomplete download, of which "
                       "%" PRIu64 " bytes are here; fetch it again",
                       file_size);
  zip->file_size = file_size;
  zip->directory = end.offset;
  zip->directory_size = end.size;
  zip->declared = end.entries;
  return XT_STATUS_ok;
}

/* ---- The directory ---- */

static xt_status bad(const xt_zip *zip, const xt_cursor *in, xt_error *error, const char *what) {
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)(zip->directory + in->at), "the zip's directory is broken: %s",
                     what);
}

/* The zip64 extra holds, in this order, whichever of size, packed size and offset are saturated. */
static bool read_wide(const uint8_t *extra, size_t extra_size, xt_record *entry) {
  xt_cursor in = {extra, extra_size, 0, false};
  bool need = entry->size == 0xFFFFFFFF || entry->packed == 0xFFFFFFFF || entry->header == 0xFFFFFFFF;
  while (need && xt_cursor_left(&in) >= 4) {
    uint64_t id = xt_cursor_le(&in, 2);
    size_t length = xt_cursor_le(&in, 2);
    const uint8_t *body = xt_cursor_take(&in, length);
    if (!body) return false;
    if (id != 1) continue;
    xt_cursor wide = {body, length, 0, false};
    if (entry->size == 0xFFFFFFFF) entry->size = xt_cursor_le(&wide, 8);
    if (entry->packed == 0xFFFFFFFF) entry->packed = xt_cursor_le(&wide, 8);
    if (entry->header == 0xFFFFFFFF) entry->header = xt_cursor_le(&wide, 8);
    return !wide.short_;
  }
  return !need;
}

static xt_status read_entry(const xt_zip *zip, xt_cursor *in, xt_record *entry, xt_error *error) {
  const uint8_t *fixed = xt_cursor_take(in, CENTRAL_SIZE);
  if (!fixed || !is(fixed, "PK\1\2")) return bad(zip, in, error, "an entry has no signature");
  entry->flags = (uint16_t)xt_le(fixed + 8, 2);
  entry->method = (uint16_t)xt_le(fixed + 10, 2);
  entry->crc = (uint32_t)xt_le(fixed + 16, 4);
  entry->packed = xt_le(fixed + 20, 4);
  entry->size = xt_le(fixed + 24, 4);
  entry->header = xt_le(fixed + 42, 4);
  entry->name_size = xt_le(fixed + 28, 2);
  size_t extra_size = xt_le(fixed + 30, 2), comment_size = xt_le(fixed + 32, 2);
  entry->name = (const char *)xt_cursor_take(in, entry->name_size);
  const uint8_t *extra = xt_cursor_take(in, extra_size);
  xt_cursor_take(in, comment_size);
  if (in->short_) return bad(zip, in, error, "an entry reaches past its end");
  if (!read_wide(extra, extra_size, entry)) return bad(zip, in, error, "a zip64 field is missing");
  if (entry->flags & (FLAG_ENCRYPTED | FLAG_STRONG))
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)entry->header,
                       "the zip is encrypted: unpack it with its password and pack it again without one");
  if (entry->method == XT_RECORD_STORED && entry->packed != entry->size)
    return bad(zip, in, error, "a stored record has two sizes");
  uint64_t least;
  if (__builtin_add_overflow(entry->header, XT_ZIP_LOCAL + entry->name_size, &least) ||
      __builtin_add_overflow(least, entry->packed, &least) || least > zip->directory)
    return bad(zip, in, error, "a record reaches past the start of the directory");
  return XT_STATUS_ok;
}

static int by_offset(const void *a, const void *b) {
  const xt_record *x = *(xt_record *const *)a, *y = *(xt_record *const *)b;
  return x->header < y->header ? -1 : x->header > y->header;
}

/* Records must follow each other: each ends where the next begins, at the latest. */
static xt_status check_overlap(const xt_zip *zip, xt_records *records, xt_error *error) {
  xt_record **sorted = malloc((records->count + 1) * sizeof *sorted);
  xt_status status = XT_STATUS_ok;
  if (!sorted) return xt_error_set(error, XT_STATUS_no_memory, "no memory for the zip's directory");
  for (size_t i = 0; i < records->count; i++) sorted[i] = &records->list[i];
  qsort(sorted, records->count, sizeof *sorted, by_offset);
  for (size_t i = 0; i < records->count && status == XT_STATUS_ok; i++) {
    xt_record *entry = sorted[i];
    entry->end = i + 1 < records->count ? sorted[i + 1]->header : zip->directory;
    if (entry->header + XT_ZIP_LOCAL + entry->name_size + entry->packed > entry->end)
      status = xt_error_at(error, XT_STATUS_corrupt, (int64_t)entry->header, "records of the zip overlap");
  }
  free(sorted);
  return status;
}

xt_status xt_zip_read_directory(const xt_zip *zip, const uint8_t *directory, xt_arena *arena, xt_records *records,
                                xt_error *error) {
  xt_cursor in = {directory, zip->directory_size, 0, false};
  if (!xt_records_reserve(records, arena, zip->declared, true))
    return xt_error_set(error, XT_STATUS_no_memory, "no memory for the zip's directory");
  while (records->count < zip->declared) {
    xt_record entry = {.has_crc = true};
    bool taken;
    xt_status status = read_entry(zip, &in, &entry, error);
    if (status != XT_STATUS_ok) return status;
    xt_record *record = xt_records_add(records, entry.name, entry.name_size, &taken);
    if (taken) return bad(zip, &in, error, "two records have one name");
    if (!record) return xt_error_set(error, XT_STATUS_no_memory, "no memory for the zip's directory");
    *record = entry;
  }
  if (xt_cursor_left(&in)) return bad(zip, &in, error, "it is longer than its entries");
  if (!records->count) return bad(zip, &in, error, "it has no entries");
  const char *slash = memchr(records->list[0].name, '/', records->list[0].name_size);
  records->root_size = slash ? (size_t)(slash - records->list[0].name) + 1 : 0;
  return check_overlap(zip, records, error);
}

/* ---- Without the directory ---- */

xt_status xt_zip_read_local(const uint8_t *local, size_t size, uint64_t at, xt_record *record, bool *sized,
                            size_t *wanted, xt_error *error) {
  size_t name_size = xt_le(local + 26, 2), extra_size = xt_le(local + 28, 2);
  *wanted = XT_ZIP_LOCAL + name_size + extra_size;
  if (size < *wanted) return XT_STATUS_ok;
  *record = (xt_record){.name = (const char *)local + XT_ZIP_LOCAL,
                        .name_size = name_size,
                        .header = at,
                        .flags = (uint16_t)xt_le(local + 6, 2),
                        .method = (uint16_t)xt_le(local + 8, 2),
                        .crc = (uint32_t)xt_le(local + 14, 4),
                        .packed = xt_le(local + 18, 4),
                        .size = xt_le(local + 22, 4)};
  *sized = !(record->flags & FLAG_DESCRIPTOR);
  if (record->flags & (FLAG_ENCRYPTED | FLAG_STRONG))
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)at,
                       "the zip is encrypted: unpack it with its password and pack it again without one");
  uint64_t header = record->header;
  record->header = 0; /* the extra field of a local header has no offset */
  bool wide = !*sized || read_wide(local + XT_ZIP_LOCAL + name_size, extra_size, record);
  record->header = header;
  if (!wide || (*sized && record->method == XT_RECORD_STORED && record->packed != record->size) ||
      (*sized && record->packed >= XT_INLINE))
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)at, "a record's header contradicts itself");
  return XT_STATUS_ok;
}

size_t xt_zip_read_descriptor(const uint8_t *bytes, uint64_t packed, xt_record *record) {
  if (!is(bytes, "PK\7\10")) return 0;
  for (size_t width = 4; width <= 8; width += 4) {
    const uint8_t *next = bytes + 8 + 2 * width;
    uint64_t size = xt_le(bytes + 8 + width, width);
    if (xt_le(bytes + 8, width) != packed || (!is(next, "PK\3\4") && !is(next, "PK\1\2"))) continue;
    if (record->method == XT_RECORD_STORED && size != packed) continue;
    record->crc = (uint32_t)xt_le(bytes + 4, 4);
    record->packed = packed;
    record->size = size;
    return 8 + 2 * width;
  }
  return 0;
}

size_t xt_zip_directory_part(const uint8_t *bytes, size_t size, size_t *wanted, bool *is_entry, bool *is_last) {
  *wanted = CENTRAL_SIZE;
  *is_entry = size >= 4 && is(bytes, "PK\1\2");
  *is_last = size >= 4 && is(bytes, "PK\5\6");
  if (size < 4) return *wanted = 4, 0;
  if (*is_entry)
    return size < CENTRAL_SIZE ? 0 : CENTRAL_SIZE + xt_le(bytes + 28, 2) + xt_le(bytes + 30, 2) + xt_le(bytes + 32, 2);
  *wanted = END_SIZE;
  if (*is_last) return size < END_SIZE ? 0 : END_SIZE + xt_le(bytes + 20, 2);
  *wanted = 0;
  if (is(bytes, "PK\6\7")) return LOCATOR_SIZE;
  return is(bytes, "PK\6\6") ? END64_SIZE : 0;
}

xt_status xt_zip_check_local(const xt_record *entry, const uint8_t *local, uint64_t *data, xt_error *error) {
  const char *odd = NULL;
  uint64_t flags = xt_le(local + 6, 2), packed = xt_le(local + 18, 4), size = xt_le(local + 22, 4);
  uint64_t name_size = xt_le(local + 26, 2), extra_size = xt_le(local + 28, 2);
  if (!is(local, "PK\3\4")) odd = "there is none";
  else if (name_size != entry->name_size || memcmp(local + XT_ZIP_LOCAL, entry->name, name_size))
    odd = "it has another name";
  else if (xt_le(local + 8, 2) != entry->method) odd = "it has another method";
  else if ((flags ^ entry->flags) & (FLAG_ENCRYPTED | FLAG_DESCRIPTOR)) odd = "it has other flags";
  else if (!(flags & FLAG_DESCRIPTOR) && ((size != 0xFFFFFFFF && size != (entry->size & 0xFFFFFFFF)) ||
                                          (packed != 0xFFFFFFFF && packed != (entry->packed & 0xFFFFFFFF))))
    odd = "it has another size"; /* torch leaves zeros in both for a record above 4 GiB, but sets the descriptor flag */
  if (odd)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)entry->header,
                       "the header of %.*s does not match the zip's directory: %s",
                       (int)(entry->name_size < 200 ? entry->name_size : 200), entry->name, odd);
  *data = entry->header + XT_ZIP_LOCAL + name_size + extra_size;
  if (*data + entry->packed > entry->end)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)entry->header, "records of the zip overlap");
  return XT_STATUS_ok;
}
