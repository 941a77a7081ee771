/* Push parser of the streaming format. */
#include "core/base/printable.h"
#include "core/formats/torch_stream.h"

#include <inttypes.h>
#include <string.h>

#include "core/formats/named_records.h"

enum { LIST, RECORD, BODY, STORAGE, SPOOL };

typedef struct {
  size_t next; /* index of the current record */
} work;

static bool has_name(const xt_record *record, const char *name) {
  return record->name_size == strlen(name) && !memcmp(record->name, name, record->name_size);
}

/* Returns true if the object and the byte order come before the storages. */
static bool in_order(const xt_records *records) {
  bool object = false, storage = false;
  for (size_t i = 0; i < records->count; i++) {
    const xt_record *record = &records->list[i];
    if (has_name(record, "data.pkl")) object = true;
    else if (has_name(record, "constants.pkl") || (storage && has_name(record, "byteorder"))) return false;
    else if (!xt_named_records_find_text(record->name, record->name_size)) storage = true;
    if (storage && !object) return false;
  }
  return object;
}

static xt_status read_list(xt_push *p, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  xt_status status;
  size_t size;
  p->reading = "the list of records";
  if (!xt_push_scan_pickle(p, &size, &status, error)) return status;
  uint8_t *data = xt_push_copy(p, xt_push_data(p), size);
  if (!data) return xt_opening_no_memory(error);
  status = xt_torch_stream_read_list(c->opening, data, size, p->at + size, error);
  if (status != XT_STATUS_ok) return status;
  p->state = RECORD;
  if (in_order(&c->directory)) return xt_push_consume(p, size, 0);
  uint64_t end = c->directory.count ? c->directory.list[c->directory.count - 1].end : p->at + size;
  if (end > p->spool_bytes)
    return xt_error_set(error, XT_STATUS_limit,
                        "the stream has its storages before its object, so all %" PRIu64
                        " bytes must be kept in memory, which exceeds the limit of %" PRIu64
                        "; raise it with limits: [spool_bytes: n], or write the stream to a file and load that",
                        end, p->spool_bytes);
  p->spooling = true;
  p->state = SPOOL;
  return xt_push_request(p, (size_t)(end - p->at), 0);
}

static xt_status read_object(xt_push *p, const xt_record *record, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  uint8_t *data = xt_push_copy(p, xt_push_data(p), record->size);
  if (!data) return xt_opening_no_memory(error);
  xt_status status = xt_opening_pickle(c->opening, data, record->size, (int64_t)p->at, &c->root, error);
  if (status == XT_STATUS_ok) status = xt_named_records_finish(c->opening, NULL, error);
  return status == XT_STATUS_ok ? xt_push_described(p, error) : status;
}

static xt_status read_body(xt_push *p, work *w, xt_error *error) {
  xt_record *record = &p->checkpoint->directory.list[w->next++];
  int text = xt_named_records_find_text(record->name, record->name_size);
  xt_status status = XT_STATUS_ok;
  if (has_name(record, "data.pkl")) status = read_object(p, record, error);
  else if (text)
    status = xt_named_records_read_text(p->checkpoint, text, xt_push_data(p), record->size, record->header, error);
  p->state = RECORD;
  xt_push_consume(p, record->size, 0);
  return status;
}

/* Finds the storage whose data the record contains. Returns false before the object has been read. */
static bool find_storage(const xt_push *p, const xt_record *record, uint32_t *storage) {
  size_t prefix = record->name_size > 5 && !memcmp(record->name, "data/", 5) ? 5 : 0;
  if (!p->regions) return false;
  size_t *index = xt_table_get(&p->checkpoint->storages.by_key, record->name + prefix, record->name_size - prefix);
  if (index) *storage = (uint32_t)*index;
  return index && p->checkpoint->records[*storage] == record;
}

static xt_status finish(xt_push *p, xt_error *error) {
  const xt_checkpoint *c = p->checkpoint;
  for (size_t i = 0; i < p->storages; i++)
    if (c->records[i] && !c->storages.list[i].data && !p->completed[i])
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)p->at,
                         "the stream does not contain the record of a storage that a tensor needs");
  p->event = XT_PUSH_DONE;
  return XT_STATUS_ok;
}

static xt_status next_record(xt_push *p, work *w, xt_error *error) {
  const xt_checkpoint *c = p->checkpoint;
  uint32_t storage;
  if (w->next == c->directory.count) return finish(p, error);
  const xt_record *record = &c->directory.list[w->next];
  if (find_storage(p, record, &storage)) {
    p->state = STORAGE;
    xt_push_request(p, record->size - c->storages.list[storage].bytes, 0); /* stray bytes after the elements */
    return xt_push_receive(p, storage, error);
  }
  bool object = has_name(record, "data.pkl");
  bool text = !object && xt_named_records_find_text(record->name, record->name_size);
  uint64_t limit = object ? c->opening->limits.pickle_bytes : text ? XT_NAMED_RECORDS_MAX_TEXT : p->spool_bytes;
  if (record->size > limit)
    return xt_error_at(error, XT_STATUS_limit, (int64_t)record->header,
                       "the record %s has %" PRIu64 " bytes, which exceeds the limit of %" PRIu64 "%s",
                       xt_printable_text(record->name, record->name_size).text, record->size, limit,
                       object ? "; raise it with limits: [pickle_bytes: n]"
                       : text ? ""
                              : "; raise it with limits: [spool_bytes: n]");
  p->reading = object ? "the pickled object" : "a record";
  p->state = BODY;
  return xt_push_request(p, record->size, 0);
}

static xt_status step(xt_push *p, xt_error *error) {
  work *w = p->work;
  switch (p->state) {
  case LIST: return read_list(p, error);
  case BODY: return read_body(p, w, error);
  case STORAGE:
    w->next++;
    p->state = RECORD;
    return xt_push_consume(p, p->needed, 0);
  case SPOOL: return xt_push_end_spool(p, p->needed);
  default: return next_record(p, w, error);
  }
}

const xt_push_parser xt_torch_stream_push = {.work_size = sizeof(work), .step = step};
