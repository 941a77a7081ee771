/* Legacy files, as they come: five pickles, then the storages, each behind the number of its elements. */
#include "core/checkpoint/push.h"
#include "core/formats/format.h"

enum { OBJECT = XT_LEGACY_SMALL, KEYS, COUNT, STORAGE };

typedef struct {
  size_t object_size;
  xt_node *keys;
  size_t next;
  uint64_t slack; /* stray bytes that may stand before the next count */
} work;

static xt_status read_pickle(xt_push *p, work *w, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  xt_status status;
  size_t size;
  p->doing = p->state == OBJECT ? "the pickled object" : "a small pickle";
  if (!xt_push_pickle(p, &size, &status, error)) return status;
  uint8_t *data = xt_push_copy(p, xt_push_data(p), size);
  if (!data) return xt_open_no_memory(error);
  if (p->state < OBJECT) {
    status = xt_legacy_read_small(c, p->state, data, size, p->at, error);
  } else if (p->state == OBJECT) {
    status = xt_legacy_read_object(c, data, size, p->at, error);
    w->object_size = size;
  } else {
    status = xt_legacy_read_keys(c, data, size, p->at, &w->keys, error);
  }
  p->state++;
  xt_push_take(p, size, p->state < COUNT);
  return status;
}

/* The tree is described once the places of all storages are known; in a stream they are given theirs beforehand. */
static xt_status describe(xt_push *p, const work *w, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  for (size_t i = 0; i < c->rebuild.storage_count; i++) {
    const xt_storage *storage = &c->rebuild.storages[i];
    if (storage->data) continue;
    c->records[i] = xt_arena_alloc(&c->arena, 1, sizeof **c->records);
    if (!c->records[i]) return xt_open_no_memory(error);
    xt_record_set_data(c->records[i], 0, storage->bytes);
  }
  xt_status status = xt_open_finish(c, w->object_size, NULL, error);
  return status == XT_STATUS_ok ? xt_push_described(p, error) : status;
}

/* A stream may end with the count of an empty storage: nothing is asked for that need not come. */
static xt_status read_count(xt_push *p, work *w, xt_error *error) {
  size_t have = xt_push_have(p);
  uint64_t slack = have - XT_LEGACY_PREFIX, data_offset;
  uint32_t storage;
  if (slack > w->slack) slack = w->slack;
  xt_status status = xt_legacy_locate_storage(p->checkpoint, w->keys->list.items[w->next], xt_push_data(p), slack,
                                              p->at, &storage, &data_offset, error);
  if (status == XT_STATUS_corrupt && slack < w->slack) return xt_push_ask(p, have + 1, 0);
  if (status != XT_STATUS_ok) return status;
  w->next++;
  w->slack = xt_dtype_get(p->checkpoint->rebuild.storages[storage].dtype)->size - 1;
  xt_push_take(p, (size_t)(data_offset - p->at), w->next < w->keys->list.count ? XT_LEGACY_PREFIX : 0);
  xt_push_receive(p, storage);
  return status;
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
    p->doing = "the number of a storage's elements";
    xt_push_ask(p, w->keys->list.count ? XT_LEGACY_PREFIX : 0, 0);
    return describe(p, w, error);
  }
  if (w->next < w->keys->list.count) return read_count(p, w, error);
  p->event = XT_PUSH_DONE;
  return XT_STATUS_ok;
}
