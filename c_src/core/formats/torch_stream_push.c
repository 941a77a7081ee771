/* The streaming format, as it comes: the list of records, and the records back to back. */
#include <inttypes.h>
#include <string.h>

#include "core/checkpoint/push.h"
#include "core/formats/format.h"

enum { LIST, RECORD, BODY, STORAGE, SPOOL };

typedef struct {
  size_t next; /* record */
} work;

static bool is(const xt_record *record, const char *name) {
  return record->name_size == strlen(name) && !memcmp(record->name, name, record->name_size);
}

/* Does the object come before the storages, and the byte order too? */
static bool in_order(const xt_records *records) {
  bool object = false, storage = false;
  for (size_t i = 0; i < records->count; i++) {
    const xt_record *record = &records->list[i];
    if (is(record, "data.pkl")) object = true;
    else if (is(record, "constants.pkl") || (storage && is(record, "byteorder"))) return false;
    else if (!xt_archive_text(record->name, record->name_size)) storage = true;
    if (storage && !object) return false;
  }
  return object;
}

static xt_status read_list(xt_forward *f, xt_error *error) {
  xt_checkpoint *c = f->checkpoint;
  xt_status status;
  size_t size;
  if (!xt_forward_pickle(f, &size, &status, error)) return status;
  uint8_t *data = xt_forward_copy(f, xt_forward_data(f), size);
  if (!data) return xt_opening_no_memory(error);
  status = xt_stream_read_list(c, data, size, f->at + size, error);
  if (status != XT_STATUS_ok) return status;
  f->state = RECORD;
  if (in_order(&c->directory)) return xt_forward_take(f, size, 0);
  uint64_t end = c->directory.count ? c->directory.list[c->directory.count - 1].end : f->at + size;
  if (end > f->spool_bytes)
    return xt_error_set(error, XT_STATUS_limit,
                        "the stream has its object behind its storages, and %" PRIu64
                        " bytes in all; the limit spool_bytes is %" PRIu64,
                        end, f->spool_bytes);
  f->keeps = true;
  f->state = SPOOL;
  return xt_forward_ask(f, (size_t)(end - f->at), 0);
}

static xt_status read_object(xt_forward *f, const xt_record *record, xt_error *error) {
  xt_checkpoint *c = f->checkpoint;
  uint8_t *data = xt_forward_copy(f, xt_forward_data(f), record->size);
  if (!data) return xt_opening_no_memory(error);
  xt_status status = xt_opening_pickle(c, &c->meaning, data, record->size, (int64_t)f->at, &c->root, error);
  if (status == XT_STATUS_ok) status = xt_opening_finish(c, record->size, NULL, error);
  return status == XT_STATUS_ok ? xt_forward_described(f, error) : status;
}

static xt_status read_body(xt_forward *f, work *w, xt_error *error) {
  xt_record *record = &f->checkpoint->directory.list[w->next++];
  int text = xt_archive_text(record->name, record->name_size);
  xt_status status = XT_STATUS_ok;
  if (is(record, "data.pkl")) status = read_object(f, record, error);
  else if (text)
    status = xt_archive_take_text(f->checkpoint, text, xt_forward_data(f), record->size, record->header, error);
  f->state = RECORD;
  xt_forward_take(f, record->size, 0);
  return status;
}

/* The storage that a record is of, once the object has told. */
static bool storage_of(const xt_forward *f, const xt_record *record, uint32_t *storage) {
  size_t folder = record->name_size > 5 && !memcmp(record->name, "data/", 5) ? 5 : 0;
  if (!f->regions) return false;
  size_t *which = xt_table_get(&f->checkpoint->meaning.by_key, record->name + folder, record->name_size - folder);
  if (which) *storage = (uint32_t)*which;
  return which && f->checkpoint->records[*storage] == record;
}

static xt_status finish(xt_forward *f, xt_error *error) {
  const xt_checkpoint *c = f->checkpoint;
  for (size_t i = 0; i < f->storages; i++)
    if (c->records[i] && !c->meaning.storages[i].data && !f->came[i])
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)f->at, "a storage that a tensor needs did not come");
  f->event = XT_FORWARD_DONE;
  return XT_STATUS_ok;
}

static xt_status next_record(xt_forward *f, work *w, xt_error *error) {
  const xt_checkpoint *c = f->checkpoint;
  uint32_t storage;
  if (w->next == c->directory.count) return finish(f, error);
  const xt_record *record = &c->directory.list[w->next];
  if (storage_of(f, record, &storage)) {
    f->state = STORAGE;
    xt_forward_ask(f, record->size - c->meaning.storages[storage].bytes, 0); /* stray bytes */
    xt_forward_receive(f, storage);
    return XT_STATUS_ok;
  }
  bool object = is(record, "data.pkl");
  uint64_t most = object                                             ? c->limits.pickle_bytes
                  : xt_archive_text(record->name, record->name_size) ? XT_ARCHIVE_TEXT
                                                                     : f->spool_bytes;
  if (record->size > most)
    return xt_error_at(error, XT_STATUS_limit, (int64_t)record->header,
                       "the record %.*s has %" PRIu64 " bytes, and the limit%s is %" PRIu64,
                       (int)(record->name_size < 200 ? record->name_size : 200), record->name, record->size,
                       object ? " pickle_bytes" : "", most);
  f->doing = object ? "the pickled object" : "a record";
  f->state = BODY;
  return xt_forward_ask(f, record->size, 0);
}

xt_status xt_forward_stream(xt_forward *f, xt_error *error) {
  work *w = f->work;
  if (!w) {
    f->checkpoint->format = &xt_format_stream;
    f->doing = "the list of records";
    w = f->work = xt_opening_alloc(f->checkpoint, sizeof *w);
    if (!w) return xt_opening_no_memory(error);
  }
  switch (f->state) {
  case LIST: return read_list(f, error);
  case BODY: return read_body(f, w, error);
  case STORAGE:
    w->next++;
    f->state = RECORD;
    return xt_forward_take(f, f->want, 0);
  case SPOOL: return xt_forward_open_spool(f, f->want, error);
  default: return next_record(f, w, error);
  }
}
