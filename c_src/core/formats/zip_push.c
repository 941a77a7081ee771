/* Push parser of zip checkpoints. It reads the records one after the other and compares them with the central directory
 * at the end.
 *
 * torch.save writes the size of a record only into the descriptor after it. The end of data.pkl is found by searching
 * for its descriptor. After that the sizes of the storages are known, and each is received directly into its own
 * memory. A file that has other records than small texts before data.pkl is spooled and opened when it is complete.
 *
 *   START → HEADER → BODY → HEADER …                 a record that is buffered: data.pkl, texts, compressed storages
 *           HEADER → STORAGE_END → HEADER …          an uncompressed storage
 *           HEADER → DIRECTORY → done
 */
#include "core/base/printable.h"
#include "core/formats/zip.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cursor.h"
#include "core/formats/named_records.h"

enum { START, HEADER, BODY, STORAGE_END, DIRECTORY };
enum { PEEK = 12 /* less than what follows the header of an empty record */ };
enum {
  AHEAD = 64 << 10,
  MIN_AHEAD = 256,
  HEADER_AHEAD = 128, /* most headers end within it */
  MAX_LIGHT = 4 << 20 /* a larger buffer takes long to grow */
};
enum { DIRECTORY_BASE = 1 << 20, DIRECTORY_ENTRY = 4 << 10 };

typedef struct {
  xt_record *seen; /* the records read so far; may move */
  size_t count, room;
  xt_table names; /* name → index in `seen` */
  size_t root_size;
  const char *root;

  /* the current record */
  xt_record record;
  bool has_sizes; /* the sizes are in the local header, not in a descriptor */
  bool is_object, is_constants;
  int text; /* see xt_named_records_find_text */
  bool is_storage;
  uint32_t storage;
  size_t scanned; /* number of bytes already searched for the descriptor */
  uint64_t limit; /* maximum size */

  bool object_read;
  bool storage_read;        /* from then on the byte order cannot change */
  bool any_crc;             /* a record has a CRC */
  bool crc_missing;         /* a record has 0 instead of its CRC */
  size_t directory_entries; /* number of entries of the directory that were read */
  size_t directory_size;    /* bytes of the directory that were read */
} work;

static xt_status corrupt(const xt_push *p, xt_error *error, const char *what) {
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)p->at, "invalid zip file: %s", what);
}

/* ---- Classification of records ---- */

static bool strip_root(const work *w, const char **name, size_t *size) {
  if (*size < w->root_size || memcmp(*name, w->root, w->root_size)) return false;
  *name += w->root_size;
  *size -= w->root_size;
  return true;
}

static bool equals(const char *name, size_t size, const char *literal) {
  return size == strlen(literal) && !memcmp(name, literal, size);
}

static bool find_storage(const xt_push *p, const char *name, size_t size, uint32_t *storage) {
  const xt_storages *storages = &p->checkpoint->storages;
  if (size < 6 || memcmp(name, "data/", 5)) return false;
  size_t *index = xt_table_get(&storages->by_key, name + 5, size - 5);
  if (!index || storages->list[*index].data || !p->checkpoint->records[*index]) return false;
  *storage = (uint32_t)*index;
  return true;
}

static xt_status classify_record(xt_push *p, work *w, xt_error *error) {
  const char *name = w->record.name;
  size_t size = w->record.name_size;
  bool in_root = strip_root(w, &name, &size);
  w->is_object = in_root && !w->object_read && equals(name, size, "data.pkl");
  w->text = in_root ? xt_named_records_find_text(name, size) : 0;
  w->is_storage = in_root && w->object_read && find_storage(p, name, size, &w->storage);
  w->is_constants = in_root && w->object_read && equals(name, size, "constants.pkl");
  w->limit = w->is_object || w->is_constants ? p->checkpoint->opening->limits.pickle_bytes
             : w->text                       ? XT_NAMED_RECORDS_MAX_TEXT
                                             : p->spool_bytes;
  w->scanned = 0;
  p->reading = w->is_object ? "the pickled object" : "a record";
  if (w->text && w->storage_read && equals(name, size, "byteorder"))
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)p->at,
                       "the record byteorder comes after the storages; write the stream to a file and load that");
  return XT_STATUS_ok;
}

/* There is no need to spool if only small text records precede the object, unless constants.pkl follows: the object is
 * a module of TorchScript. `data` has the first PEEK bytes of the record. */
static void decide_spooling(xt_push *p, const work *w, const uint8_t *data) {
  if (!w->is_object || !p->spooling) return;
  p->spooling = w->record.method == XT_RECORD_STORED && !memcmp(data, "\x80\2c__torch__", PEEK);
  for (size_t i = 0; i < w->count; i++) p->spooling |= !w->seen[i].flags;
}

/* Adds the current record, whose sizes are known now, to `seen`. `flags` becomes 1 if it is a small text. */
static xt_status add_seen(xt_push *p, work *w, xt_error *error) {
  bool is_new;
  if (!xt_arena_reserve(&p->checkpoint->arena, &w->seen, &w->room, w->count + 1, sizeof *w->seen))
    return xt_opening_no_memory(error);
  size_t *at = xt_table_put(&w->names, w->record.name, w->record.name_size, &is_new);
  if (!at) return xt_opening_no_memory(error);
  if (!is_new) return corrupt(p, error, "duplicate record name");
  *at = w->count;
  w->record.flags = w->text != 0;
  w->any_crc |= w->record.crc != 0;
  p->checkpoint->checksums = w->any_crc ? XT_CHECKSUMS_PRESENT : XT_CHECKSUMS_ABSENT;
  if (p->verify && w->any_crc && w->crc_missing)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)w->record.header,
                       "a record before %s is damaged: it has no checksum, but others have; download the file again",
                       xt_printable_text(w->record.name, w->record.name_size).text);
  w->seen[w->count++] = w->record;
  return XT_STATUS_ok;
}

/* ---- The object ---- */

static xt_status read_object(xt_push *p, work *w, const uint8_t *data, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  size_t size = w->record.size;
  int64_t at = w->record.method == XT_RECORD_STORED ? (int64_t)p->at : -1;
  xt_status status = xt_opening_pickle(c->opening, data, size, at, &c->root, error);
  if (status == XT_STATUS_ok) status = xt_push_describe(p, false, error);
  w->object_read = true;
  return status;
}

/* ---- Records ---- */

/* A CRC of 0 is accepted as missing as long as no record has one. */
static xt_status verify_crc(const xt_push *p, work *w, uint32_t crc, xt_error *error) {
  xt_record record = w->record;
  record.has_crc = true;
  if (record.crc) w->any_crc = true;
  else if (crc) w->crc_missing = true;
  return p->verify && (record.crc || (w->any_crc && w->crc_missing)) ? xt_record_verify(&record, crc, error)
                                                                     : XT_STATUS_ok;
}

static xt_status unpack(xt_push *p, work *w, uint8_t *to, xt_error *error) {
  w->record.has_crc = w->record.crc != 0;
  xt_status status = xt_record_inflate(&w->record, xt_push_data(p), to, error);
  if (status != XT_STATUS_ok || !w->record.size) return status;
  return verify_crc(p, w, w->record.crc ? w->record.crc : libdeflate_crc32(0, to, w->record.size), error);
}

static xt_status read_deflated_storage(xt_push *p, work *w, xt_error *error) {
  const xt_storage *storage = &p->checkpoint->storages.list[w->storage];
  if (w->record.size < storage->bytes || w->record.size - storage->bytes >= xt_dtype_get(storage->dtype)->size)
    return corrupt(p, error, "the size of a record differs from that of its storage");
  xt_status status = xt_push_expect(p, w->storage, error);
  if (status != XT_STATUS_ok) return status;
  w->storage_read = true;
  if (!p->wanted[w->storage]) return xt_push_complete(p, w->storage, NULL, error);
  xt_region *region = xt_slab_take(&p->slab, w->record.size);
  if (!region) return xt_region_refused(error);
  status = unpack(p, w, region->data, error);
  region->size = storage->bytes;
  p->received += storage->bytes;
  if (status == XT_STATUS_ok) return xt_push_complete(p, w->storage, region, error);
  xt_region_drop(region);
  return status;
}

/* The tensors of constants.pkl belong into the index, but the index is complete once the object has been read. Only an
 * empty tuple of constants, usual in files without tensors, can be accepted. */
static xt_status check_constants(xt_push *p, const work *w, const uint8_t *data, xt_error *error) {
  xt_node *root;
  xt_opening *o = p->checkpoint->opening;
  xt_status status = xt_opening_value(o, o->rebuild.strict, data, w->record.size, -1, NULL, &root, error);
  bool is_empty = status == XT_STATUS_ok && root->kind == XT_NODE_TUPLE && !root->list.count;
  if (status != XT_STATUS_ok || is_empty) return status;
  return xt_error_at(error, XT_STATUS_unsupported, (int64_t)p->at,
                     "the record constants.pkl comes after data.pkl; write the stream to a file and load that");
}

/* Reads a record that is buffered completely. */
static xt_status read_record(xt_push *p, work *w, xt_error *error) {
  const uint8_t *data = xt_push_data(p);
  xt_status status = xt_record_check_method(&w->record, error);
  if (status != XT_STATUS_ok || (p->spooling && !w->text)) return status;
  bool packed = w->record.method == XT_RECORD_DEFLATED;
  if (w->is_storage) return read_deflated_storage(p, w, error);
  if (!w->is_object && !w->text && !w->is_constants) return status;
  if (w->record.size > w->limit)
    return xt_error_at(error, XT_STATUS_limit, (int64_t)w->record.header,
                       "the record %s has %" PRIu64 " bytes, which exceeds the limit of %" PRIu64 "%s",
                       xt_printable_text(w->record.name, w->record.name_size).text, w->record.size, w->limit,
                       w->text ? "" : "; raise it with limits: [pickle_bytes: n]");
  uint8_t *copy =
      packed ? xt_arena_alloc(&p->checkpoint->arena, w->record.size, 1) : xt_push_copy(p, data, w->record.size);
  if (!copy) return xt_opening_no_memory(error);
  if (packed) status = unpack(p, w, copy, error);
  else status = verify_crc(p, w, libdeflate_crc32(0, data, w->record.size), error);
  if (status != XT_STATUS_ok) return status;
  if (w->is_object) return read_object(p, w, copy, error);
  if (w->is_constants) return check_constants(p, w, copy, error);
  return xt_named_records_read_text(p->checkpoint, w->text, copy, w->record.size, w->record.header, error);
}

static xt_status next_header(xt_push *p, const work *w, size_t taken) {
  p->state = HEADER;
  p->light = w->object_read;
  p->reading = "the header of a record";
  xt_status status = xt_push_consume(p, taken, XT_ZIP_LOCAL_SIZE);
  p->lookahead = HEADER_AHEAD;
  return status;
}

/* Requests more bytes of what is buffered until it is complete. */
static xt_status buffer_more(xt_push *p, size_t needed, size_t ahead) {
  p->light = !p->spooling && p->buffer.size < MAX_LIGHT;
  return xt_push_request(p, needed, ahead);
}

static xt_status too_large(const work *w, xt_error *error) {
  return xt_error_at(error, XT_STATUS_limit, (int64_t)w->record.header,
                     "the record %s has more than %" PRIu64 " bytes; %s",
                     xt_printable_text(w->record.name, w->record.name_size).text, w->limit,
                     w->is_object || w->is_constants ? "raise the limit with limits: [pickle_bytes: n]"
                     : w->text                       ? "this is the maximum for a record of this name"
                                                     : "raise the limit with limits: [spool_bytes: n]");
}

/* Searches for the end of the record: a descriptor with the size of the data before it and a header after it. */
static bool find_descriptor(xt_push *p, work *w, size_t *descriptor) {
  const uint8_t *data = xt_push_data(p);
  size_t available = xt_push_available(p);
  while (w->scanned + XT_ZIP_DESCRIPTOR_WINDOW <= available) {
    size_t last = available - XT_ZIP_DESCRIPTOR_WINDOW + 4; /* end of the last possible signature */
    const uint8_t *found = memmem(data + w->scanned, last - w->scanned, "PK\7\10", 4);
    w->scanned = found ? (size_t)(found - data) : last - 3;
    if (!found) break;
    *descriptor = xt_zip_read_descriptor(found, w->scanned, &w->record);
    if (*descriptor) return true;
    w->scanned++;
  }
  return false;
}

static xt_status read_body(xt_push *p, work *w, xt_error *error) {
  size_t descriptor = 0;
  if (w->has_sizes) {
    w->scanned = w->record.packed;
  } else if (!find_descriptor(p, w, &descriptor)) {
    if (xt_push_available(p) > w->limit) return too_large(w, error);
    /* not more than was needed so far: the bytes after a short record would be copied for nothing */
    size_t ahead = w->scanned + MIN_AHEAD < AHEAD ? w->scanned + MIN_AHEAD : AHEAD;
    return buffer_more(p, w->scanned + XT_ZIP_DESCRIPTOR_WINDOW, ahead);
  }
  if (!w->text && xt_push_put_off(p))
    return xt_push_request(p, w->scanned + (w->has_sizes ? 0 : XT_ZIP_DESCRIPTOR_WINDOW), 0);
  xt_status status = read_record(p, w, error);
  if (status == XT_STATUS_ok) status = add_seen(p, w, error);
  return status == XT_STATUS_ok ? next_header(p, w, w->scanned + descriptor) : status;
}

/* ---- Storages ---- */

static xt_status begin_storage(xt_push *p, work *w, size_t header, xt_error *error) {
  const xt_storage *storage = &p->checkpoint->storages.list[w->storage];
  size_t item = xt_dtype_get(storage->dtype)->size;
  if (w->has_sizes && (w->record.size < storage->bytes || w->record.size - storage->bytes >= item))
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)p->at,
                       "invalid zip file: the record %s has %" PRIu64 " bytes but its storage has %" PRIu64,
                       xt_printable_text(w->record.name, w->record.name_size).text, w->record.size, storage->bytes);
  w->storage_read = true;
  p->state = STORAGE_END;
  /* the central directory follows the last record, so there are always enough bytes for a descriptor */
  xt_push_consume(p, header, w->has_sizes ? w->record.size - storage->bytes : item - 1 + XT_ZIP_DESCRIPTOR_WINDOW);
  return xt_push_receive(p, w->storage, error);
}

/* After the data of a storage: up to an element's size of stray bytes, then the descriptor, if there is one. */
static xt_status end_storage(xt_push *p, work *w, xt_error *error) {
  const xt_storage *storage = &p->checkpoint->storages.list[w->storage];
  const uint8_t *data = xt_push_data(p);
  size_t descriptor = 0, skipped = w->has_sizes ? p->needed : 0, item = xt_dtype_get(storage->dtype)->size;
  for (; !w->has_sizes && skipped < item; skipped++)
    if ((descriptor = xt_zip_read_descriptor(data + skipped, storage->bytes + skipped, &w->record))) break;
  if (!w->has_sizes && !descriptor) return corrupt(p, error, "the size of a record differs from that of its storage");
  xt_status status = verify_crc(p, w, libdeflate_crc32(p->crc, data, skipped), error);
  if (status == XT_STATUS_ok) status = add_seen(p, w, error);
  return status == XT_STATUS_ok ? next_header(p, w, skipped + descriptor) : status;
}

/* ---- Headers ---- */

static xt_status read_header(xt_push *p, work *w, xt_error *error) {
  const uint8_t *data = xt_push_data(p);
  size_t needed;
  if (!memcmp(data, "PK\1\2", 4)) {
    p->state = DIRECTORY;
    p->reading = "the central directory";
    w->directory_size = 0;
    return XT_STATUS_ok;
  }
  if (memcmp(data, "PK\3\4", 4)) return corrupt(p, error, "expected the header of a record");
  xt_status status = xt_zip_read_local(data, xt_push_available(p), p->at, &w->record, &w->has_sizes, &needed, error);
  if (status != XT_STATUS_ok) return status;
  if (xt_push_available(p) < needed) return xt_push_request(p, needed, 0);
  size_t peek =
      p->spooling && w->record.name_size >= 8 && !memcmp(w->record.name + w->record.name_size - 8, "data.pkl", 8) ? PEEK
                                                                                                                  : 0;
  if (xt_push_available(p) < needed + peek) return xt_push_request(p, needed + peek, 0);
  w->record.name = (const char *)xt_push_copy(p, (const uint8_t *)w->record.name, w->record.name_size);
  if (!w->record.name) return xt_opening_no_memory(error);
  if (!w->root) {
    const char *slash = memchr(w->record.name, '/', w->record.name_size);
    w->root = w->record.name;
    w->root_size = slash ? (size_t)(slash - w->root) + 1 : 0;
  }
  status = classify_record(p, w, error);
  if (status != XT_STATUS_ok) return status;
  decide_spooling(p, w, data + needed);
  if (w->is_storage && w->record.method == XT_RECORD_STORED) return begin_storage(p, w, needed, error);
  if (w->has_sizes) status = xt_record_check_method(&w->record, error);
  if (status != XT_STATUS_ok) return status;
  if (w->has_sizes && (w->record.packed > w->limit || (w->record.size > w->limit && !w->is_storage)))
    return too_large(w, error);
  p->state = BODY;
  p->light = !p->spooling && (!w->has_sizes || w->record.packed < MAX_LIGHT);
  return xt_push_consume(p, needed, w->has_sizes ? w->record.packed : XT_ZIP_DESCRIPTOR_WINDOW);
}

/* ---- The central directory ---- */

static xt_status compare_directory(const xt_push *p, const work *w, const xt_records *records, xt_error *error) {
  for (size_t i = 0; i < records->count; i++) {
    const xt_record *listed = &records->list[i];
    size_t *at = xt_table_get(&w->names, listed->name, listed->name_size);
    const xt_record *seen = at ? &w->seen[*at] : NULL;
    if (!seen || seen->header != listed->header || seen->packed != listed->packed || seen->size != listed->size ||
        seen->method != listed->method || (seen->crc != listed->crc && seen->size))
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)p->at,
                         "invalid zip file: the entry of record %s in the central directory differs from the record",
                         xt_printable_text(listed->name, listed->name_size).text);
  }
  if (records->count != w->count) return corrupt(p, error, "a record is missing in the central directory");
  return XT_STATUS_ok;
}

static xt_status finish(xt_push *p, work *w, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  size_t size = w->directory_size;
  if (p->spooling) return xt_push_end_spool(p, size);
  uint8_t *data = xt_push_copy(p, xt_push_data(p), size);
  xt_zip zip;
  if (!data) return xt_opening_no_memory(error);
  xt_status status = xt_zip_find_directory(&zip, data, size, p->at + size, error);
  if (status != XT_STATUS_ok) return status;
  if (zip.directory != p->at)
    return corrupt(p, error, "the end record contains a wrong offset of the central directory");
  status = xt_zip_read_directory(&zip, data, &c->arena, &c->directory, error);
  if (status == XT_STATUS_ok) status = compare_directory(p, w, &c->directory, error);
  if (status != XT_STATUS_ok) return status;
  if (!w->object_read) return corrupt(p, error, "it has no record data.pkl, so it was not written by torch.save");
  for (size_t i = 0; i < p->storages; i++)
    if (c->records[i] && !c->storages.list[i].data && !p->completed[i])
      return xt_error_set(error, XT_STATUS_corrupt, "the record data/%s is missing but a tensor needs it",
                          xt_printable_text(c->storages.list[i].key, c->storages.list[i].key_size).text);
  xt_push_consume(p, size, 0);
  p->event = XT_PUSH_DONE;
  return status;
}

static xt_status read_directory(xt_push *p, work *w, xt_error *error) {
  const uint8_t *data = xt_push_data(p);
  for (;;) {
    size_t available = xt_push_available(p), needed = 0;
    bool is_entry = false, is_last = false;
    size_t size = available < w->directory_size
                      ? 0
                      : xt_zip_directory_part(data + w->directory_size, available - w->directory_size, &needed,
                                              &is_entry, &is_last);
    if (!size && !needed) return corrupt(p, error, "expected the end record after the central directory");
    if (w->directory_size + (size ? size : needed) > DIRECTORY_BASE + w->count * DIRECTORY_ENTRY)
      return xt_error_at(error, XT_STATUS_limit, (int64_t)p->at,
                         "the central directory is much larger than needed for its records");
    if (!size) return buffer_more(p, w->directory_size + needed, AHEAD);
    if (size > available - w->directory_size) return buffer_more(p, w->directory_size + size, AHEAD);
    if (is_last && xt_push_put_off(p)) return xt_push_request(p, w->directory_size + size, 0);
    if (is_entry && ++w->directory_entries > w->count)
      return corrupt(p, error, "the central directory lists more records than the file has");
    w->directory_size += size;
    if (is_last) return finish(p, w, error);
  }
}

static void free_work(void *object) { xt_table_free(&((work *)object)->names); }

static xt_status step(xt_push *p, xt_error *error) {
  work *w = p->work;
  switch (p->state) {
  case START:
    p->spooling = true;
    w->names.allowance = &p->checkpoint->allowance;
    p->state = HEADER;
    return xt_push_request(p, XT_ZIP_LOCAL_SIZE, 0);
  case HEADER: return read_header(p, w, error);
  case BODY: return read_body(p, w, error);
  case STORAGE_END: return end_storage(p, w, error);
  default: return read_directory(p, w, error);
  }
}

const xt_push_parser xt_zip_push = {.work_size = sizeof(work), .step = step, .free_work = free_work};
