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

static xt_status read_pickle(xt_forward *f, work *w, xt_error *error) {
  xt_checkpoint *c = f->checkpoint;
  xt_status status;
  size_t size;
  f->doing = f->state == OBJECT ? "the pickled object" : "a small pickle";
  if (!xt_forward_pickle(f, &size, &status, error)) return status;
  uint8_t *data = xt_forward_copy(f, xt_forward_data(f), size);
  if (!data) return xt_opening_no_memory(error);
  if (f->state < OBJECT) {
    status = xt_legacy_read_small(c, f->state, data, size, f->at, error);
  } else if (f->state == OBJECT) {
    status = xt_legacy_read_object(c, data, size, f->at, error);
    w->object_size = size;
  } else {
    status = xt_legacy_read_keys(c, data, size, f->at, &w->keys, error);
  }
  f->state++;
  xt_forward_take(f, size, f->state < COUNT);
  return status;
}

/* The tree is described once the places of all storages are known; in a stream they are given theirs beforehand. */
static xt_status describe(xt_forward *f, const work *w, xt_error *error) {
  xt_checkpoint *c = f->checkpoint;
  for (size_t i = 0; i < c->meaning.storage_count; i++) {
    const xt_storage *storage = &c->meaning.storages[i];
    if (storage->data) continue;
    c->records[i] = xt_arena_alloc(&c->arena, 1, sizeof **c->records);
    if (!c->records[i]) return xt_opening_no_memory(error);
    xt_record_place(c->records[i], 0, storage->bytes);
  }
  xt_status status = xt_opening_finish(c, w->object_size, NULL, error);
  return status == XT_STATUS_ok ? xt_forward_described(f, error) : status;
}

/* A stream may end with the count of an empty storage: nothing is asked for that need not come. */
static xt_status read_count(xt_forward *f, work *w, xt_error *error) {
  size_t have = xt_forward_have(f);
  uint64_t slack = have - XT_LEGACY_PREFIX, place;
  uint32_t storage;
  if (slack > w->slack) slack = w->slack;
  xt_status status = xt_legacy_place_storage(f->checkpoint, w->keys->list.items[w->next], xt_forward_data(f), slack,
                                             f->at, &storage, &place, error);
  if (status == XT_STATUS_corrupt && slack < w->slack) return xt_forward_ask(f, have + 1, 0);
  if (status != XT_STATUS_ok) return status;
  w->next++;
  w->slack = xt_dtype_get(f->checkpoint->meaning.storages[storage].dtype)->size - 1;
  xt_forward_take(f, (size_t)(place - f->at), w->next < w->keys->list.count ? XT_LEGACY_PREFIX : 0);
  xt_forward_receive(f, storage);
  return status;
}

xt_status xt_forward_legacy(xt_forward *f, xt_error *error) {
  work *w = f->work;
  if (!w) {
    f->checkpoint->format = &xt_format_legacy;
    w = f->work = xt_opening_alloc(f->checkpoint, sizeof *w);
    if (!w) return xt_opening_no_memory(error);
  }
  if (f->state < COUNT) return read_pickle(f, w, error);
  if (f->state == COUNT) {
    f->state = STORAGE;
    f->doing = "the number of a storage's elements";
    xt_forward_ask(f, w->keys->list.count ? XT_LEGACY_PREFIX : 0, 0);
    return describe(f, w, error);
  }
  if (w->next < w->keys->list.count) return read_count(f, w, error);
  f->event = XT_FORWARD_DONE;
  return XT_STATUS_ok;
}
