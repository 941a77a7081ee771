/* Push parser of legacy checkpoints. */
#include "core/formats/legacy.h"

enum { PICKLES, DESCRIBE, STORAGES };

typedef struct {
  int pickle; /* the pickle that is read next */
  xt_legacy_order order;
  size_t next;    /* index of the next storage in the order */
  uint64_t slack; /* number of stray bytes that may precede the next element count */
} work;

static xt_status read_pickle(xt_push *p, work *w, xt_error *error) {
  xt_opening *o = p->checkpoint->opening;
  xt_status status;
  size_t size;
  bool object = w->pickle == XT_LEGACY_PICKLE_OBJECT;
  p->reading = object ? "the pickled object" : "a header pickle";
  if (!xt_push_scan_pickle(p, &size, &status, error)) return status;
  uint8_t *data = xt_push_copy(p, xt_push_data(p), size);
  if (!data) return xt_opening_no_memory(error);
  if (object) status = xt_legacy_read_object(o, data, size, p->at, error);
  else if (w->pickle == XT_LEGACY_PICKLE_KEYS) status = xt_legacy_read_keys(o, data, size, p->at, &w->order, error);
  else status = xt_legacy_read_header(o, w->pickle, data, size, p->at, error);
  bool last = ++w->pickle == XT_LEGACY_PICKLES;
  if (last) p->state = DESCRIBE;
  xt_push_consume(p, size, !last);
  return status;
}

/* Reads an element count. Requests stray bytes one at a time: the stream may end right after the count of an empty
 * storage. */
static xt_status read_count(xt_push *p, work *w, xt_error *error) {
  size_t available = xt_push_available(p);
  uint64_t slack = available - XT_LEGACY_PREFIX, data_offset;
  uint32_t storage = w->order.list[w->next];
  if (slack > w->slack) slack = w->slack;
  xt_status status =
      xt_legacy_locate_storage(p->checkpoint, storage, xt_push_data(p), slack, p->at, &data_offset, error);
  if (status == XT_STATUS_corrupt && slack < w->slack) return xt_push_request(p, available + 1, 0);
  if (status != XT_STATUS_ok) return status;
  w->next++;
  w->slack = xt_dtype_get(p->checkpoint->storages.list[storage].dtype)->size - 1;
  xt_push_consume(p, (size_t)(data_offset - p->at), w->next < w->order.count ? XT_LEGACY_PREFIX : 0);
  return xt_push_receive(p, storage, error);
}

static xt_status step(xt_push *p, xt_error *error) {
  work *w = p->work;
  if (p->state == PICKLES) return read_pickle(p, w, error);
  if (p->state == DESCRIBE) {
    p->state = STORAGES;
    p->reading = "the element count of a storage";
    xt_push_request(p, w->order.count ? XT_LEGACY_PREFIX : 0, 0);
    return xt_push_describe(p, true, error);
  }
  if (w->next < w->order.count) return read_count(p, w, error);
  p->event = XT_PUSH_DONE;
  return XT_STATUS_ok;
}

const xt_push_parser xt_legacy_push = {.work_size = sizeof(work), .step = step};
