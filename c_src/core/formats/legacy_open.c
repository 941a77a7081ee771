/* Legacy: torch 0.1.10 to 1.5. Five pickles (magic, protocol, system, object, keys of the storages), then for each key
 * the number of elements as 8 bytes and the elements. */
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/cursor.h"
#include "core/formats/format.h"

enum { START, SMALL, OBJECT = SMALL + XT_LEGACY_SMALL, KEYS, STORAGES };
enum { PROTOCOL = 1001, AHEAD = 64 << 10, SMALL_STORAGE = 16 << 10 };

typedef struct {
  xt_window small, object, keys, walk; /* each pickle keeps its bytes: the tree points into them */
  uint64_t at;                         /* where to go on */
  uint64_t object_size;
  xt_node *list; /* of keys */
  size_t next;   /* key */
  uint64_t end;  /* of the last storage's elements */
  uint64_t item; /* bytes of one of them */
} work;

static xt_status broken(uint64_t at, xt_error *error, const char *what) {
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)at, "the legacy checkpoint is broken: %s", what);
}

/* ---- Parts ---- */

xt_status xt_legacy_read_small(xt_checkpoint *c, int which, const uint8_t *data, size_t size, uint64_t at,
                               xt_error *error) {
  xt_node *value;
  xt_rebuild plain = {.arena = &c->arena, .strict = c->rebuild.strict};
  xt_status status = xt_open_pickle(c, &plain, data, size, (int64_t)at, &value, error);
  xt_rebuild_free(&plain);
  if (status != XT_STATUS_ok) return status;
  if (which == 1 && (value->kind != XT_NODE_INT || value->integer != PROTOCOL))
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)at, "a legacy checkpoint of a protocol that is not %d",
                       PROTOCOL);
  if (which == 2 && value->kind != XT_NODE_DICT) return broken(at, error, "it does not describe a system");
  return status;
}

xt_status xt_legacy_read_object(xt_checkpoint *c, const uint8_t *data, size_t size, uint64_t at, xt_error *error) {
  c->rebuild.ids = XT_IDS_LEGACY;
  return xt_open_pickle(c, &c->rebuild, data, size, (int64_t)at, &c->root, error);
}

xt_status xt_legacy_read_keys(xt_checkpoint *c, const uint8_t *data, size_t size, uint64_t at, xt_node **keys,
                              xt_error *error) {
  xt_rebuild plain = {.arena = &c->arena, .strict = c->rebuild.strict};
  xt_status status = xt_open_pickle(c, &plain, data, size, (int64_t)at, keys, error);
  xt_rebuild_free(&plain);
  if (status != XT_STATUS_ok) return status;
  if ((*keys)->kind != XT_NODE_LIST) return broken(at, error, "the keys of its storages are no list");
  size_t stored = 0; /* arrays of numpy have their bytes in the pickle */
  for (size_t i = 0; i < c->rebuild.storage_count; i++) stored += c->rebuild.storages[i].data == NULL;
  if ((*keys)->list.count != stored)
    return broken(at, error, "it lists another number of storages than its tensors have");
  c->records = calloc(c->rebuild.storage_count + 1, sizeof *c->records);
  if (!c->records || !xt_records_reserve(&c->directory, &c->arena, stored, true)) return xt_open_no_memory(error);
  return status;
}

/* torch writes fewer than an element's bytes too many when a byte storage is seen as a wider type: then the next count
 * stands a little further on. */
static bool find_count(const uint8_t *bytes, uint64_t slack, int64_t numel, uint64_t *stray) {
  for (*stray = 0; *stray <= slack; ++*stray)
    if (xt_le(bytes + *stray, XT_LEGACY_PREFIX) == (uint64_t)numel) return true;
  return false;
}

static xt_status find_storage(const xt_checkpoint *c, const xt_node *key, uint64_t at, uint32_t *out, xt_error *error) {
  size_t *which = key->kind == XT_NODE_TEXT ? xt_table_get(&c->rebuild.by_key, key->text.data, key->text.size) : NULL;
  if (!which) return broken(at, error, "it lists a storage that no tensor has");
  *out = (uint32_t)*which;
  return XT_STATUS_ok;
}

xt_status xt_legacy_locate_storage(xt_checkpoint *c, const xt_node *key, const uint8_t *bytes, uint64_t slack,
                                   uint64_t at, uint32_t *which, uint64_t *data_offset, xt_error *error) {
  uint64_t stray;
  xt_status status = find_storage(c, key, at, which, error);
  if (status != XT_STATUS_ok) return status;
  const xt_storage *storage = &c->rebuild.storages[*which];
  if (!find_count(bytes, slack, storage->numel, &stray))
    return broken(at, error, "a storage has another number of elements than its tensors expect");
  *data_offset = at + stray + XT_LEGACY_PREFIX;
  if (storage->bytes > c->file_size - *data_offset)
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)c->file_size,
                       "a storage ends at byte %" PRIu64 " and the file at %" PRIu64
                       ": most often an incomplete download; fetch it again",
                       *data_offset + storage->bytes, c->file_size);
  bool taken;
  xt_record *record =
      xt_records_add_stored(&c->directory, storage->key, storage->key_size, *data_offset, storage->bytes, &taken);
  if (taken) return broken(at, error, "it lists a storage twice");
  if (!record) return xt_open_no_memory(error);
  c->records[*which] = record;
  return XT_STATUS_ok;
}

/* ---- Through a file ---- */

static xt_status read_small(xt_checkpoint *c, work *w, xt_need *need, xt_error *error) {
  xt_status status;
  size_t size;
  if (!xt_window_pickle(c, &w->small, w->at, &size, need, error, &status)) return status;
  const uint8_t *data = w->small.data + (w->at - w->small.at);
  status = xt_legacy_read_small(c, c->state - SMALL, data, size, w->at, error);
  w->at += size;
  c->state++;
  return status;
}

static xt_status read_object(xt_checkpoint *c, work *w, xt_need *need, xt_error *error) {
  xt_status status;
  size_t size;
  if (!xt_window_pickle(c, &w->object, w->at, &size, need, error, &status)) return status;
  status = xt_legacy_read_object(c, w->object.data, size, w->at, error);
  w->object_size = size;
  w->at += size;
  c->state = KEYS;
  return status;
}

static xt_status read_keys(xt_checkpoint *c, work *w, xt_need *need, xt_error *error) {
  xt_status status;
  size_t size;
  if (!xt_window_pickle(c, &w->keys, w->at, &size, need, error, &status)) return status;
  status = xt_legacy_read_keys(c, w->keys.data, size, w->at, &w->list, error);
  w->end = w->at += size;
  w->item = 1;
  c->state = STORAGES;
  return status;
}

static xt_status place_storage(xt_checkpoint *c, work *w, const xt_node *key, xt_need *need, xt_error *error) {
  uint32_t which = 0;
  xt_status status = find_storage(c, key, w->end, &which, error);
  if (status != XT_STATUS_ok) return status;
  const xt_storage *storage = &c->rebuild.storages[which];
  uint64_t slack = w->item - 1, left = c->file_size - w->end, data_offset;
  if (left < XT_LEGACY_PREFIX + slack) slack = left < XT_LEGACY_PREFIX ? 0 : left - XT_LEGACY_PREFIX;
  /* small storages are walked through in memory, large ones are stepped over */
  size_t ahead = storage->bytes < SMALL_STORAGE ? AHEAD : 0;
  const uint8_t *bytes = xt_window_get(c, &w->walk, w->end, XT_LEGACY_PREFIX + slack, ahead, need, error, &status);
  if (!bytes) return status;
  status = xt_legacy_locate_storage(c, key, bytes, slack, w->end, &which, &data_offset, error);
  if (status != XT_STATUS_ok) return status;
  w->end = data_offset + storage->bytes;
  w->item = xt_dtype_get(storage->dtype)->size;
  w->next++;
  return XT_STATUS_ok;
}

/* Another save may follow, again after stray bytes. */
static void find_next(xt_checkpoint *c, work *w) {
  uint64_t left = c->file_size - w->end;
  c->next = left && left >= w->item ? w->end : 0;
}

static xt_status step(xt_checkpoint *c, xt_need *need, xt_error *error) {
  work *w = c->work;
  xt_status status = XT_STATUS_ok;
  if (c->state == START) {
    w = c->work = xt_open_alloc(c, sizeof *w);
    if (!w) return xt_open_no_memory(error);
    w->at = c->base;
    c->state = SMALL;
  }
  while (status == XT_STATUS_ok && !need->size) {
    if (c->state < OBJECT) status = read_small(c, w, need, error);
    else if (c->state == OBJECT) status = read_object(c, w, need, error);
    else if (c->state == KEYS) status = read_keys(c, w, need, error);
    else if (w->next < w->list->list.count) status = place_storage(c, w, w->list->list.items[w->next], need, error);
    else {
      find_next(c, w);
      return xt_open_finish(c, w->object_size, NULL, error);
    }
  }
  return status;
}

const xt_format xt_legacy_format = {"legacy", true, step};
