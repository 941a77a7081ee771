/* Zip, as it comes: record after record, and the directory at the end, which must agree with what was seen.
 *
 * torch.save tells the size of a record only behind it. The object is found by its descriptor, then its storages are
 * known and received into their own memory. An archive that has anything but small texts before its object is kept
 * whole and opened at its end.
 */
#include "core/formats/zip.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cursor.h"
#include "core/checkpoint/push.h"
#include "core/formats/format.h"

enum { START, HEADER, BODY, TRAIL, DIRECTORY };
enum { AHEAD = 64 << 10, DIRECTORY_BASE = 1 << 20, DIRECTORY_ENTRY = 4 << 10, NOTES_BASE = 64 << 20 };

typedef struct {
  xt_record *seen; /* grows: nobody points into it */
  size_t count, room;
  xt_table names;
  size_t root_size;
  const char *root;

  /* the record at hand */
  xt_record record;
  bool sized, object, constants;
  int text;
  bool is_storage;
  uint32_t storage;
  size_t scanned; /* no descriptor begins before here */
  uint64_t most;  /* bytes it may have */

  bool is_open;     /* the object was read */
  bool has_storage; /* a storage was received: the byte order is settled */
  size_t entries;   /* of the directory */
  size_t part;      /* of it, that is looked at */
} work;

static xt_status bad(const xt_push *p, xt_error *error, const char *what) {
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)p->at, "the zip is broken: %s", what);
}

/* ---- What a record is ---- */

static bool below_root(const work *w, const char **name, size_t *size) {
  if (*size < w->root_size || memcmp(*name, w->root, w->root_size)) return false;
  *name += w->root_size;
  *size -= w->root_size;
  return true;
}

static bool is(const char *name, size_t size, const char *word) {
  return size == strlen(word) && !memcmp(name, word, size);
}

static bool find_storage(const xt_push *p, const char *name, size_t size, uint32_t *storage) {
  const xt_rebuild *rebuild = &p->checkpoint->rebuild;
  if (size < 6 || memcmp(name, "data/", 5)) return false;
  size_t *which = xt_table_get(&rebuild->by_key, name + 5, size - 5);
  if (!which || rebuild->storages[*which].data || !p->checkpoint->records[*which]) return false;
  *storage = (uint32_t)*which;
  return true;
}

static xt_status classify(xt_push *p, work *w, xt_error *error) {
  const char *name = w->record.name;
  size_t size = w->record.name_size;
  bool below = below_root(w, &name, &size);
  w->object = below && !w->is_open && is(name, size, "data.pkl");
  w->text = below ? xt_named_records_text(name, size) : 0;
  w->is_storage = below && w->is_open && find_storage(p, name, size, &w->storage);
  w->constants = below && w->is_open && is(name, size, "constants.pkl");
  w->most = w->object || w->constants ? p->checkpoint->limits.pickle_bytes
            : w->text                 ? XT_NAMED_RECORDS_TEXT
                                      : p->spool_bytes;
  w->scanned = 0;
  p->doing = w->object ? "the pickled object" : "a record";
  if (w->text && w->has_storage && is(name, size, "byteorder"))
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)p->at,
                       "the byte order comes after the storages: write the archive to a file and load that");
  /* The object is the first large thing, or everything has to wait for it. */
  if (w->object && p->keeps) {
    p->keeps = false;
    for (size_t i = 0; i < w->count; i++) p->keeps |= !w->seen[i].flags;
  }
  return XT_STATUS_ok;
}

/* Notes a record whose sizes are known now. In `flags`: can it stand before the object? */
static xt_status note(xt_push *p, work *w, xt_error *error) {
  bool is_new;
  if (w->count == w->room) {
    size_t room = w->room ? 2 * w->room : 64;
    xt_record *grown = xt_arena_alloc(&p->checkpoint->arena, room, sizeof *grown);
    if (!grown) return xt_open_no_memory(error);
    if (w->count) memcpy(grown, w->seen, w->count * sizeof *grown);
    w->seen = grown;
    w->room = room;
  }
  size_t *at = xt_table_put(&w->names, w->record.name, w->record.name_size, &is_new);
  if (!at) return xt_open_no_memory(error);
  if (!is_new) return bad(p, error, "two records have one name");
  *at = w->count;
  w->record.flags = w->text != 0;
  w->seen[w->count++] = w->record;
  return XT_STATUS_ok;
}

/* ---- The object ---- */

/* Storages have their records before those come: so the tree can be used. */
static xt_status expect_storages(xt_checkpoint *c, xt_error *error) {
  size_t count = c->rebuild.storage_count;
  xt_record *records = xt_arena_alloc(&c->arena, count + 1, sizeof *records);
  c->records = calloc(count + 1, sizeof *c->records);
  if (!records || !c->records) return xt_open_no_memory(error);
  for (size_t i = 0; i < count; i++) {
    const xt_storage *storage = &c->rebuild.storages[i];
    bool meta = storage->location_size == 4 && !memcmp(storage->location, "meta", 4);
    if (storage->data || meta) continue;
    records[i].name = storage->key;
    records[i].name_size = storage->key_size;
    xt_record_set_data(&records[i], 0, storage->bytes);
    c->records[i] = &records[i];
  }
  return XT_STATUS_ok;
}

static xt_status read_object(xt_push *p, work *w, const uint8_t *data, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  size_t size = w->record.size;
  int64_t at = w->record.method == XT_RECORD_STORED ? (int64_t)p->at : -1;
  xt_status status = xt_open_pickle(c, &c->rebuild, data, size, at, &c->root, error);
  if (status == XT_STATUS_ok) status = expect_storages(c, error);
  if (status == XT_STATUS_ok) status = xt_open_finish(c, size, NULL, error);
  if (status == XT_STATUS_ok) status = xt_push_described(p, error);
  w->is_open = true;
  return status;
}

/* ---- Records ---- */

static xt_status check_crc(const xt_push *p, const work *w, uint32_t crc, xt_error *error) {
  xt_record record = w->record;
  record.has_crc = true;
  return p->checkpoint->verify ? xt_checkpoint_verify(&record, crc, error) : XT_STATUS_ok;
}

static xt_status unpack(xt_push *p, work *w, uint8_t *to, xt_error *error) {
  w->record.has_crc = true;
  return xt_checkpoint_inflate(&w->record, xt_push_data(p), to, error);
}

static xt_status read_packed_storage(xt_push *p, work *w, xt_error *error) {
  const xt_storage *storage = &p->checkpoint->rebuild.storages[w->storage];
  if (w->record.size < storage->bytes || w->record.size - storage->bytes >= xt_dtype_get(storage->dtype)->size)
    return bad(p, error, "a record has another size than its tensor's storage");
  w->has_storage = true;
  if (!p->wanted[w->storage]) return xt_push_complete(p, w->storage, NULL), XT_STATUS_ok;
  xt_region *region = xt_region_new(w->record.size ? w->record.size : 1, 0);
  if (!region) return xt_region_refused(error);
  xt_status status = unpack(p, w, region->data, error);
  region->size = storage->bytes;
  p->received += storage->bytes;
  if (status == XT_STATUS_ok) xt_push_complete(p, w->storage, region);
  else xt_region_drop(region);
  return status;
}

/* TorchScript's constants are indexed after the object's tensors, and here those are given away already. An archive
 * without tensors has them behind its object, and usually none. */
static xt_status check_constants(xt_push *p, const work *w, const uint8_t *data, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  xt_node *root;
  xt_rebuild plain = {.arena = &c->arena, .strict = c->rebuild.strict, .max_tensor_bytes = c->limits.tensor_bytes};
  xt_status status = xt_open_pickle(c, &plain, data, w->record.size, -1, &root, error);
  bool none = status == XT_STATUS_ok && root->kind == XT_NODE_TUPLE && !root->list.count;
  xt_rebuild_free(&plain);
  if (status != XT_STATUS_ok || none) return status;
  return xt_error_at(error, XT_STATUS_unsupported, (int64_t)p->at,
                     "the archive's constants come after its object: write it to a file and load that");
}

/* A whole record is held. */
static xt_status read_record(xt_push *p, work *w, xt_error *error) {
  const uint8_t *data = xt_push_data(p);
  xt_status status = xt_checkpoint_check_method(&w->record, error);
  if (status != XT_STATUS_ok || (p->keeps && !w->text)) return status;
  bool packed = w->record.method == XT_RECORD_DEFLATED;
  if (w->is_storage) return read_packed_storage(p, w, error);
  if (!w->object && !w->text && !w->constants) return status;
  if (w->record.size > w->most)
    return xt_error_at(error, XT_STATUS_limit, (int64_t)w->record.header,
                       "a record of %" PRIu64 " bytes; the limit%s is %" PRIu64, w->record.size,
                       w->object || w->constants ? " pickle_bytes" : "", w->most);
  uint8_t *copy = packed ? xt_open_alloc(p->checkpoint, w->record.size) : xt_push_copy(p, data, w->record.size);
  if (!copy) return xt_open_no_memory(error);
  if (packed) status = unpack(p, w, copy, error);
  else status = check_crc(p, w, libdeflate_crc32(0, data, w->record.size), error);
  if (status != XT_STATUS_ok) return status;
  if (w->object) return read_object(p, w, copy, error);
  if (w->constants) return check_constants(p, w, copy, error);
  return xt_named_records_take_text(p->checkpoint, w->text, copy, w->record.size, w->record.header, error);
}

static xt_status next_header(xt_push *p, const work *w, size_t taken) {
  p->state = HEADER;
  p->light = w->is_open;
  p->doing = "a record's header";
  return xt_push_take(p, taken, XT_ZIP_LOCAL);
}

static xt_status too_large(const work *w, xt_error *error) {
  return xt_error_at(error, XT_STATUS_limit, (int64_t)w->record.header,
                     "a record of more than %" PRIu64 " bytes; the limit is %s", w->most,
                     w->object || w->constants ? "pickle_bytes"
                     : w->text                 ? "the format's"
                                               : "spool_bytes");
}

/* The record ends where its descriptor says so: with the size that it has there, and a header behind it. */
static bool find_descriptor(xt_push *p, work *w, size_t *descriptor) {
  const uint8_t *data = xt_push_data(p);
  size_t have = xt_push_have(p);
  while (w->scanned + XT_ZIP_DESCRIPTOR <= have) {
    size_t last = have - XT_ZIP_DESCRIPTOR + 4; /* where a signature may end */
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
  if (w->sized) {
    w->scanned = w->record.packed;
  } else if (!find_descriptor(p, w, &descriptor)) {
    if (xt_push_have(p) > w->most) return too_large(w, error);
    return xt_push_ask(p, w->scanned + XT_ZIP_DESCRIPTOR, AHEAD);
  }
  xt_status status = read_record(p, w, error);
  if (status == XT_STATUS_ok) status = note(p, w, error);
  return status == XT_STATUS_ok ? next_header(p, w, w->scanned + descriptor) : status;
}

/* ---- Storages ---- */

static xt_status begin_storage(xt_push *p, work *w, size_t header, xt_error *error) {
  const xt_storage *storage = &p->checkpoint->rebuild.storages[w->storage];
  size_t item = xt_dtype_get(storage->dtype)->size;
  if (w->sized && (w->record.size < storage->bytes || w->record.size - storage->bytes >= item))
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)p->at,
                       "a record has %" PRIu64 " bytes and its tensor's storage %" PRIu64, w->record.size,
                       storage->bytes);
  if (p->came[w->storage]) return bad(p, error, "two records have one name");
  w->has_storage = true;
  p->state = TRAIL;
  /* The directory comes behind the last record: so many bytes always follow. */
  xt_push_take(p, header, w->sized ? w->record.size - storage->bytes : item - 1 + XT_ZIP_DESCRIPTOR);
  xt_push_receive(p, w->storage);
  return XT_STATUS_ok;
}

/* Fewer than an element's bytes may be too many; then the descriptor, or the next header. */
static xt_status end_storage(xt_push *p, work *w, xt_error *error) {
  const xt_storage *storage = &p->checkpoint->rebuild.storages[w->storage];
  const uint8_t *data = xt_push_data(p);
  size_t descriptor = 0, stray = w->sized ? p->want : 0, item = xt_dtype_get(storage->dtype)->size;
  for (; !w->sized && stray < item; stray++)
    if ((descriptor = xt_zip_read_descriptor(data + stray, storage->bytes + stray, &w->record))) break;
  if (!w->sized && !descriptor) return bad(p, error, "a record has another size than its tensor's storage");
  xt_status status = check_crc(p, w, libdeflate_crc32(p->crc, data, stray), error);
  if (status == XT_STATUS_ok) status = note(p, w, error);
  return status == XT_STATUS_ok ? next_header(p, w, stray + descriptor) : status;
}

/* ---- Headers ---- */

static xt_status read_header(xt_push *p, work *w, xt_error *error) {
  const uint8_t *data = xt_push_data(p);
  size_t wanted;
  if (!memcmp(data, "PK\1\2", 4)) {
    p->state = DIRECTORY;
    p->light = false;
    p->doing = "the zip's directory";
    w->part = 0;
    return XT_STATUS_ok;
  }
  if (memcmp(data, "PK\3\4", 4)) return bad(p, error, "a record does not end where the next begins");
  xt_status status = xt_zip_read_local(data, xt_push_have(p), p->at, &w->record, &w->sized, &wanted, error);
  if (status != XT_STATUS_ok) return status;
  if (xt_push_have(p) < wanted) return xt_push_ask(p, wanted, 0);
  w->record.name = (const char *)xt_push_copy(p, (const uint8_t *)w->record.name, w->record.name_size);
  if (!w->record.name) return xt_open_no_memory(error);
  if (!w->root) {
    const char *slash = memchr(w->record.name, '/', w->record.name_size);
    w->root = w->record.name;
    w->root_size = slash ? (size_t)(slash - w->root) + 1 : 0;
  }
  status = classify(p, w, error);
  if (status != XT_STATUS_ok) return status;
  if (w->is_storage && w->record.method == XT_RECORD_STORED) return begin_storage(p, w, wanted, error);
  if (w->sized) status = xt_checkpoint_check_method(&w->record, error);
  if (status != XT_STATUS_ok) return status;
  if (w->sized && (w->record.packed > w->most || (w->record.size > w->most && !w->is_storage)))
    return too_large(w, error);
  p->state = BODY;
  p->light = false; /* it may have to be unpacked */
  return xt_push_take(p, wanted, w->sized ? w->record.packed : XT_ZIP_DESCRIPTOR);
}

/* ---- The directory ---- */

static xt_status compare(const xt_push *p, const work *w, const xt_records *records, xt_error *error) {
  for (size_t i = 0; i < records->count; i++) {
    const xt_record *listed = &records->list[i];
    size_t *at = xt_table_get(&w->names, listed->name, listed->name_size);
    const xt_record *seen = at ? &w->seen[*at] : NULL;
    if (!seen || seen->header != listed->header || seen->packed != listed->packed || seen->size != listed->size ||
        seen->method != listed->method || (seen->crc != listed->crc && seen->size))
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)p->at,
                         "the zip's directory has another %.*s than the one that came",
                         (int)(listed->name_size < 200 ? listed->name_size : 200), listed->name);
  }
  if (records->count != w->count) return bad(p, error, "the directory does not list all its records");
  return XT_STATUS_ok;
}

static xt_status finish(xt_push *p, work *w, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  size_t size = w->part;
  if (p->keeps) return xt_push_open_spool(p, size, error);
  uint8_t *data = xt_push_copy(p, xt_push_data(p), size);
  xt_zip zip;
  if (!data) return xt_open_no_memory(error);
  xt_status status = xt_zip_find_directory(&zip, data, size, p->at + size, error);
  if (status != XT_STATUS_ok) return status;
  if (zip.directory != p->at) return bad(p, error, "the directory is not where its end record says");
  status = xt_zip_read_directory(&zip, data, &c->arena, &c->directory, error);
  if (status == XT_STATUS_ok) status = compare(p, w, &c->directory, error);
  if (status != XT_STATUS_ok) return status;
  if (!w->is_open) return bad(p, error, "it is an archive without data.pkl: no checkpoint that torch.save wrote");
  for (size_t i = 0; i < p->storages; i++)
    if (c->records[i] && !c->rebuild.storages[i].data && !p->came[i])
      return xt_error_set(error, XT_STATUS_corrupt, "the record data/%.*s, which a tensor needs, is missing",
                          (int)(c->rebuild.storages[i].key_size < 100 ? c->rebuild.storages[i].key_size : 100),
                          c->rebuild.storages[i].key);
  xt_push_take(p, size, 0);
  p->event = XT_PUSH_DONE;
  return status;
}

static xt_status read_directory(xt_push *p, work *w, xt_error *error) {
  const uint8_t *data = xt_push_data(p);
  for (;;) {
    size_t have = xt_push_have(p), wanted = 0;
    bool is_entry = false, is_last = false;
    size_t size =
        have < w->part ? 0 : xt_zip_directory_part(data + w->part, have - w->part, &wanted, &is_entry, &is_last);
    if (!size && !wanted) return bad(p, error, "its directory is followed by something else than its end");
    if (w->part + (size ? size : wanted) > DIRECTORY_BASE + w->count * DIRECTORY_ENTRY)
      return xt_error_at(error, XT_STATUS_limit, (int64_t)p->at,
                         "the zip's directory is much longer than its records need");
    if (!size) return xt_push_ask(p, w->part + wanted, 0);
    if (size > have - w->part) return xt_push_ask(p, w->part + size, 0);
    if (is_entry && ++w->entries > w->count) return bad(p, error, "the directory lists more than came");
    w->part += size;
    if (is_last) return finish(p, w, error);
  }
}

static void free_work(void *object) { xt_table_free(&((work *)object)->names); }

xt_status xt_zip_push(xt_push *p, xt_error *error) {
  work *w = p->work;
  switch (p->state) {
  case START:
    p->checkpoint->format = &xt_zip_format;
    w = p->work = xt_open_alloc(p->checkpoint, sizeof *w);
    if (!w) return xt_open_no_memory(error);
    p->free_work = free_work;
    p->keeps = true;
    p->checkpoint->arena.limit = NOTES_BASE + p->spool_bytes; /* what is noted of records that say nothing */
    p->state = HEADER;
    return xt_push_ask(p, XT_ZIP_LOCAL, 0);
  case HEADER: return read_header(p, w, error);
  case BODY: return read_body(p, w, error);
  case TRAIL: return end_storage(p, w, error);
  default: return read_directory(p, w, error);
  }
}
