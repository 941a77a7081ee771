#include "core/formats/zip.h"
#include "core/base/printable.h"

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

static bool has_signature(const uint8_t *bytes, const char *signature) { return !memcmp(bytes, signature, 4); }

/* ---- The end record ---- */

typedef struct {
  uint64_t at; /* offset in the file */
  uint64_t entries, size, offset;
} end_record;

/* A field of the end record is either saturated (0xFFFF…), and its value is in the zip64 end record, or equal to it. */
static bool matches(uint64_t plain, uint64_t zip64, uint64_t saturated) { return plain == saturated || plain == zip64; }

static xt_status read_end(const uint8_t *tail, uint64_t tail_at, size_t at, end_record *end, xt_error *error) {
  const uint8_t *record = tail + at;
  end->at = tail_at + at;
  uint64_t disk = xt_le(record + 4, 2), directory_disk = xt_le(record + 6, 2), disk_entries = xt_le(record + 8, 2);
  end->entries = xt_le(record + 10, 2);
  end->size = xt_le(record + 12, 4);
  end->offset = xt_le(record + 16, 4);
  uint64_t directory_limit = end->at;
  if (at >= LOCATOR_SIZE && has_signature(record - LOCATOR_SIZE, "PK\6\7")) {
    uint64_t zip64_at = xt_le(record - LOCATOR_SIZE + 8, 8);
    if (zip64_at < tail_at || zip64_at - tail_at > at - LOCATOR_SIZE ||
        at - LOCATOR_SIZE - (zip64_at - tail_at) < END64_SIZE || !has_signature(tail + (zip64_at - tail_at), "PK\6\6"))
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)(end->at - LOCATOR_SIZE),
                         "invalid zip file: the zip64 locator does not point to a zip64 end record");
    const uint8_t *zip64 = tail + (zip64_at - tail_at);
    uint64_t entries = xt_le(zip64 + 32, 8), size = xt_le(zip64 + 40, 8), offset = xt_le(zip64 + 48, 8);
    if (!matches(end->entries, entries, 0xFFFF) || !matches(end->size, size, 0xFFFFFFFF) ||
        !matches(end->offset, offset, 0xFFFFFFFF) || xt_le(zip64 + 24, 8) != entries)
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)zip64_at,
                         "invalid zip file: the end record and the zip64 end record differ");
    end->entries = entries, end->size = size, end->offset = offset;
    directory_limit = zip64_at;
  } else if (end->entries == 0xFFFF || end->size == 0xFFFFFFFF || end->offset == 0xFFFFFFFF) {
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)end->at, "invalid zip file: the zip64 end record is missing");
  }
  if ((disk && disk != 0xFFFF) || (directory_disk && directory_disk != 0xFFFF) ||
      (disk_entries != 0xFFFF && disk_entries != (end->entries & 0xFFFF)))
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)end->at,
                       "the zip file is split into several files; join them first with `zip -s 0`");
  if (end->offset > directory_limit || end->size > directory_limit - end->offset)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)end->at,
                       "invalid zip file: the central directory lies outside the file");
  if (end->entries > end->size / CENTRAL_SIZE)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)end->at,
                       "invalid zip file: the number of entries exceeds the size of the central directory");
  return XT_STATUS_ok;
}

xt_status xt_zip_find_directory(xt_zip *zip, const uint8_t *tail, size_t tail_size, uint64_t file_size,
                                xt_error *error) {
  uint64_t tail_at = file_size - tail_size;
  end_record end = {0};
  bool found = false;
  /* A second end record is valid only before the directory, in the data of a record (a checkpoint stored in a tensor).
   */
  for (size_t at = tail_size < END_SIZE ? 0 : tail_size - END_SIZE + 1;
       at-- > 0 && (!found || tail_at + at >= end.offset);) {
    if (tail[at] != 'P' || !has_signature(tail + at, "PK\5\6")) continue;
    if (found)
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)(tail_at + at),
                         "invalid zip file: two end records, which different readers would interpret differently");
    xt_status status = read_end(tail, tail_at, at, &end, error);
    if (status != XT_STATUS_ok) return status;
    found = true;
  }
  if (!found)
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)file_size,
                       "the zip file of %" PRIu64
                       " bytes has no end record, probably an incomplete download; download it again",
                       file_size);
  zip->file_size = file_size;
  zip->directory = end.offset;
  zip->directory_size = end.size;
  zip->entry_count = end.entries;
  return XT_STATUS_ok;
}

/* ---- The central directory ---- */

static xt_status corrupt(const xt_zip *zip, const xt_cursor *in, xt_error *error, const char *what) {
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)(zip->directory + in->at), "invalid zip central directory: %s",
                     what);
}

/* Reads the zip64 extra field, which contains those of size, compressed size and header offset that are saturated in
 * the entry, in this order. */
static bool read_zip64(const uint8_t *extra, size_t extra_size, xt_record *entry) {
  xt_cursor in = {extra, extra_size, 0, false};
  bool required = entry->size == 0xFFFFFFFF || entry->packed == 0xFFFFFFFF || entry->header == 0xFFFFFFFF;
  while (required && xt_cursor_left(&in) >= 4) {
    uint64_t id = xt_cursor_le(&in, 2);
    size_t length = xt_cursor_le(&in, 2);
    const uint8_t *body = xt_cursor_take(&in, length);
    if (!body) return false;
    if (id != 1) continue;
    xt_cursor zip64 = {body, length, 0, false};
    if (entry->size == 0xFFFFFFFF) entry->size = xt_cursor_le(&zip64, 8);
    if (entry->packed == 0xFFFFFFFF) entry->packed = xt_cursor_le(&zip64, 8);
    if (entry->header == 0xFFFFFFFF) entry->header = xt_cursor_le(&zip64, 8);
    return !zip64.short_;
  }
  return !required;
}

static xt_status read_entry(const xt_zip *zip, xt_cursor *in, xt_record *entry, xt_error *error) {
  const uint8_t *fixed = xt_cursor_take(in, CENTRAL_SIZE);
  if (!fixed || !has_signature(fixed, "PK\1\2")) return corrupt(zip, in, error, "an entry has no signature");
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
  if (in->short_) return corrupt(zip, in, error, "an entry extends past the end of the directory");
  if (!read_zip64(extra, extra_size, entry)) return corrupt(zip, in, error, "an entry has no zip64 field");
  if (entry->flags & (FLAG_ENCRYPTED | FLAG_STRONG))
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)entry->header,
                       "the zip file is encrypted; extract it with its password and create it again without one");
  if (entry->method == XT_RECORD_STORED && entry->packed != entry->size)
    return corrupt(zip, in, error, "an uncompressed record has two different sizes");
  uint64_t min_end;
  if (__builtin_add_overflow(entry->header, XT_ZIP_LOCAL_SIZE + entry->name_size, &min_end) ||
      __builtin_add_overflow(min_end, entry->packed, &min_end) || min_end > zip->directory)
    return corrupt(zip, in, error, "a record extends past the start of the directory");
  return XT_STATUS_ok;
}

static int compare_offsets(const void *a, const void *b) {
  const xt_record *x = *(xt_record *const *)a, *y = *(xt_record *const *)b;
  return x->header < y->header ? -1 : x->header > y->header;
}

/* Sets the end of every record to the start of the next one and checks that the records do not overlap. */
static xt_status check_overlap(const xt_zip *zip, xt_records *records, xt_error *error) {
  xt_record **sorted = malloc((records->count + 1) * sizeof *sorted);
  xt_status status = XT_STATUS_ok;
  if (!sorted) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while reading the zip central directory");
  for (size_t i = 0; i < records->count; i++) sorted[i] = &records->list[i];
  qsort(sorted, records->count, sizeof *sorted, compare_offsets);
  for (size_t i = 0; i < records->count && status == XT_STATUS_ok; i++) {
    xt_record *entry = sorted[i];
    entry->end = i + 1 < records->count ? sorted[i + 1]->header : zip->directory;
    if (entry->header + XT_ZIP_LOCAL_SIZE + entry->name_size + entry->packed > entry->end)
      status = xt_error_at(error, XT_STATUS_corrupt, (int64_t)entry->header, "invalid zip file: two records overlap");
  }
  free(sorted);
  return status;
}

xt_status xt_zip_read_directory(const xt_zip *zip, const uint8_t *directory, xt_arena *arena, xt_records *records,
                                xt_error *error) {
  xt_cursor in = {directory, zip->directory_size, 0, false};
  if (!xt_records_reserve(records, arena, zip->entry_count, true))
    return xt_error_set(error, XT_STATUS_no_memory, "out of memory while reading the zip central directory");
  while (records->count < zip->entry_count) {
    xt_record entry = {.has_crc = true};
    bool duplicate;
    xt_status status = read_entry(zip, &in, &entry, error);
    if (status != XT_STATUS_ok) return status;
    xt_record *record = xt_records_add(records, entry.name, entry.name_size, &duplicate);
    if (duplicate) return corrupt(zip, &in, error, "duplicate record name");
    if (!record)
      return xt_error_set(error, XT_STATUS_no_memory, "out of memory while reading the zip central directory");
    *record = entry;
  }
  if (xt_cursor_left(&in)) return corrupt(zip, &in, error, "unexpected data after the last entry");
  if (!records->count) return corrupt(zip, &in, error, "the directory has no entries");
  const char *slash = memchr(records->list[0].name, '/', records->list[0].name_size);
  records->root_size = slash ? (size_t)(slash - records->list[0].name) + 1 : 0;
  return check_overlap(zip, records, error);
}

/* ---- Reading forward, without the directory ---- */

xt_status xt_zip_read_local(const uint8_t *local, size_t size, uint64_t at, xt_record *record, bool *has_sizes,
                            size_t *needed, xt_error *error) {
  size_t name_size = xt_le(local + 26, 2), extra_size = xt_le(local + 28, 2);
  *needed = XT_ZIP_LOCAL_SIZE + name_size + extra_size;
  if (size < *needed) return XT_STATUS_ok;
  *record = (xt_record){.name = (const char *)local + XT_ZIP_LOCAL_SIZE,
                        .name_size = name_size,
                        .header = at,
                        .flags = (uint16_t)xt_le(local + 6, 2),
                        .method = (uint16_t)xt_le(local + 8, 2),
                        .crc = (uint32_t)xt_le(local + 14, 4),
                        .packed = xt_le(local + 18, 4),
                        .size = xt_le(local + 22, 4)};
  *has_sizes = !(record->flags & FLAG_DESCRIPTOR);
  if (record->flags & (FLAG_ENCRYPTED | FLAG_STRONG))
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)at,
                       "the zip file is encrypted; extract it with its password and create it again without one");
  uint64_t header = record->header;
  record->header = 0; /* not saturated: the extra field of a local header has no offset */
  bool valid = !*has_sizes || read_zip64(local + XT_ZIP_LOCAL_SIZE + name_size, extra_size, record);
  record->header = header;
  if (!valid || (*has_sizes && record->method == XT_RECORD_STORED && record->packed != record->size) ||
      (*has_sizes && record->packed >= XT_INLINE))
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)at,
                       "invalid zip file: inconsistent sizes in the header of a record");
  return XT_STATUS_ok;
}

size_t xt_zip_read_descriptor(const uint8_t *bytes, uint64_t packed, xt_record *record) {
  if (!has_signature(bytes, "PK\7\10")) return 0;
  for (size_t width = 4; width <= 8; width += 4) {
    const uint8_t *next = bytes + 8 + 2 * width;
    uint64_t size = xt_le(bytes + 8 + width, width);
    if (xt_le(bytes + 8, width) != packed || (!has_signature(next, "PK\3\4") && !has_signature(next, "PK\1\2")))
      continue;
    if (record->method == XT_RECORD_STORED && size != packed) continue;
    record->crc = (uint32_t)xt_le(bytes + 4, 4);
    record->packed = packed;
    record->size = size;
    return 8 + 2 * width;
  }
  return 0;
}

size_t xt_zip_directory_part(const uint8_t *bytes, size_t size, size_t *needed, bool *is_entry, bool *is_last) {
  *needed = CENTRAL_SIZE;
  *is_entry = size >= 4 && has_signature(bytes, "PK\1\2");
  *is_last = size >= 4 && has_signature(bytes, "PK\5\6");
  if (size < 4) return *needed = 4, 0;
  if (*is_entry)
    return size < CENTRAL_SIZE ? 0 : CENTRAL_SIZE + xt_le(bytes + 28, 2) + xt_le(bytes + 30, 2) + xt_le(bytes + 32, 2);
  *needed = END_SIZE;
  if (*is_last) return size < END_SIZE ? 0 : END_SIZE + xt_le(bytes + 20, 2);
  *needed = 0;
  if (has_signature(bytes, "PK\6\7")) return LOCATOR_SIZE;
  return has_signature(bytes, "PK\6\6") ? END64_SIZE : 0;
}

size_t xt_zip_local_size(const xt_record *entry) { return XT_ZIP_LOCAL_SIZE + entry->name_size; }

xt_status xt_zip_check_local(const xt_record *entry, const uint8_t *local, uint64_t *data, xt_error *error) {
  const char *mismatch = NULL;
  uint64_t flags = xt_le(local + 6, 2), packed = xt_le(local + 18, 4), size = xt_le(local + 22, 4);
  uint64_t name_size = xt_le(local + 26, 2), extra_size = xt_le(local + 28, 2);
  if (!has_signature(local, "PK\3\4")) mismatch = "signature not found";
  else if (name_size != entry->name_size || memcmp(local + XT_ZIP_LOCAL_SIZE, entry->name, name_size))
    mismatch = "different name";
  else if (xt_le(local + 8, 2) != entry->method) mismatch = "different method";
  else if ((flags ^ entry->flags) & (FLAG_ENCRYPTED | FLAG_DESCRIPTOR)) mismatch = "different flags";
  else if (!(flags & FLAG_DESCRIPTOR) && ((size != 0xFFFFFFFF && size != (entry->size & 0xFFFFFFFF)) ||
                                          (packed != 0xFFFFFFFF && packed != (entry->packed & 0xFFFFFFFF))))
    mismatch = "different size"; /* torch writes 0 for sizes above 4 GiB, but also sets the descriptor flag */
  if (mismatch)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)entry->header,
                       "invalid zip file: the header of record %s does not match the central directory: %s",
                       xt_printable_text(entry->name, entry->name_size).text, mismatch);
  *data = entry->header + XT_ZIP_LOCAL_SIZE + name_size + extra_size;
  if (*data + entry->packed > entry->end)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)entry->header, "invalid zip file: two records overlap");
  return XT_STATUS_ok;
}
