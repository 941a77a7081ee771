/* Push parser of legacy checkpoints. */
#include "core/formats/legacy.h"

enum { OBJECT = XT_LEGACY_HEADER_PICKLES, KEYS, COUNT, STORAGE };

typedef struct {
  xt_node *keys;
  size_t next;    /* index of the next key */
  uint64_t slack; /* number of stray bytes that may precede the next element count */
} work;

static xt_status read_pickle(xt_push *p, work *w, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  xt_status status;
  size_t size;
  p->reading = p->state == OBJECT ? "the pickled object" : "a header pickle";
  if (!xt_push_scan_pickle(p, &size, &status, error)) return status;
  uint8_t *data = xt_push_copy(p, xt_push_data(p), size);
  if (!data) return xt_open_no_memory(error);
  if (p->state < OBJECT) {
    status = xt_legacy_read_header(c, p->state, data, size, p->at, error);
  } else if (p->state == OBJECT) {
    status = xt_legacy_read_object(c, data, size, p->at, error);
  } else {
    status = xt_legacy_read_keys(c, data, size, p->at, &w->keys, error);
  }
  p->state++;
  xt_push_consume(p, size, p->state < COUNT);
  return status;
}

/* Gives every storage a provisional record: xt_open_finish needs one, but the offsets are not known yet. */
static xt_status describe(xt_push *p, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  for (size_t i = 0; i < c->rebuild.storage_count; i++) {
    const xt_storage *storage = &c->rebuild.storages[i];
    if (storage->data) continue;
    c->records[i] = xt_arena_alloc(&c->arena, 1, sizeof **c->records);
    if (!c->records[i]) return xt_open_no_memory(error);
    xt_record_set_data(c->records[i], 0, storage->bytes);
  }
  xt_status status = xt_open_finish(c, NULL, error);
  return status == XT_STATUS_ok ? xt_push_described(p, error) : status;
}

/* Reads an element count. Requests stray bytes one at a time: the stream may end right after the count of an empty
 * storage. */
static xt_status read_count(xt_push *p, work *w, xt_error *error) {
  size_t available = xt_push_available(p);
  uint64_t slack = available - XT_LEGACY_PREFIX, data_offset;
  uint32_t storage;
  if (slack > w->slack) slack = w->slack;
  xt_status status = xt_legacy_locate_storage(p->checkpoint, w->keys->list.items[w->next], xt_push_data(p), slack,
                                              p->at, &storage, &data_offset, error);
  if (status == XT_STATUS_corrupt && slack < w->slack) return xt_push_request(p, available + 1, 0);
  if (status != XT_STATUS_ok) return status;
  w->next++;
  w->slack = xt_dtype_get(p->checkpoint->rebuild.storages[storage].dtype)->size - 1;
  xt_push_consume(p, (size_t)(data_offset - p->at), w->next < w->keys->list.count ? XT_LEGACY_PREFIX : 0);
  return xt_push_receive(p, storage, error);
}

xt_status xt_legacy_push(xt_push *p, xt_error *error) {
  work *w = p->work;
  if (!w) {
    p->checkpoint->format = &xt_legacy_format;
    w = p->work = xt_open_alloc(p->checkpoint, sizeof *w);
    if (!w) return xt_open_no_memory(error);
  }
  if (p->state < COUNT) return read_pickle(p, w, error);
  if (p->state == COUNT) {
    p->state = STORAGE;
    p->reading = "the element count of a storage";
    xt_push_request(p, w->keys->list.count ? XT_LEGACY_PREFIX : 0, 0);
    return describe(p, error);
  }
  if (w->next < w->keys->list.count) return read_count(p, w, error);
  p->event = XT_PUSH_DONE;
  return XT_STATUS_ok;
}
