/* Opens a legacy checkpoint. */
#include "core/formats/legacy.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/base/cursor.h"

enum { START, HEADER, OBJECT = HEADER + XT_LEGACY_HEADER_PICKLES, KEYS, STORAGES };
enum { AHEAD = 64 << 10, SMALL_STORAGE = 16 << 10 };

typedef struct {
  xt_window header, object, keys; /* one per pickle: the tree points into their bytes */
  xt_window counts;               /* element counts of the storages */
  uint64_t at;                    /* offset of the next pickle */
  xt_node *list;                  /* the keys */
  size_t next;                    /* index of the next key */
  uint64_t end;                   /* end of the previous storage's data */
  uint64_t item;                  /* element size of the previous storage */
} work;

static xt_status corrupt(uint64_t at, xt_error *error, const char *what) {
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)at, "invalid legacy checkpoint: %s", what);
}

/* ---- Parts of the file, shared with the push parser ---- */

xt_status xt_legacy_read_header(xt_checkpoint *c, int index, const uint8_t *data, size_t size, uint64_t at,
                                xt_error *error) {
  xt_node *value;
  xt_rebuild plain = {.arena = &c->arena, .strict = c->rebuild.strict};
  xt_status status = xt_open_pickle(&plain, data, size, (int64_t)at, &value, error);
  xt_rebuild_free(&plain);
  if (status != XT_STATUS_ok) return status;
  if (index == 1 && (value->kind != XT_NODE_INT || value->integer != XT_LEGACY_PROTOCOL))
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)at,
                       "unsupported protocol of a legacy checkpoint; expected %d", XT_LEGACY_PROTOCOL);
  if (index == 2 && value->kind != XT_NODE_DICT) return corrupt(at, error, "expected a dict as the third pickle");
  return status;
}

xt_status xt_legacy_read_object(xt_checkpoint *c, const uint8_t *data, size_t size, uint64_t at, xt_error *error) {
  c->rebuild.ids = XT_IDS_LEGACY;
  return xt_open_pickle(&c->rebuild, data, size, (int64_t)at, &c->root, error);
}

xt_status xt_legacy_read_keys(xt_checkpoint *c, const uint8_t *data, size_t size, uint64_t at, xt_node **keys,
                              xt_error *error) {
  xt_rebuild plain = {.arena = &c->arena, .strict = c->rebuild.strict};
  xt_status status = xt_open_pickle(&plain, data, size, (int64_t)at, keys, error);
  xt_rebuild_free(&plain);
  if (status != XT_STATUS_ok) return status;
  if ((*keys)->kind != XT_NODE_LIST) return corrupt(at, error, "expected a list of storage keys as the fifth pickle");
  size_t stored = 0; /* without numpy arrays, whose data is inside the pickle */
  for (size_t i = 0; i < c->rebuild.storage_count; i++) stored += c->rebuild.storages[i].data == NULL;
  if ((*keys)->list.count != stored)
    return corrupt(at, error, "the number of listed storages differs from the number that the tensors use");
  if (!xt_open_reserve_records(c) || !xt_records_reserve(&c->directory, &c->arena, stored, true))
    return xt_open_no_memory(error);
  return status;
}

/* Finds the element count, which may come after up to `slack` stray bytes: if a byte storage is viewed as a wider dtype
 * and its size is not a multiple of the element size, torch writes the remaining bytes as well. */
static bool find_count(const uint8_t *bytes, uint64_t slack, int64_t numel, uint64_t *skipped) {
  for (*skipped = 0; *skipped <= slack; ++*skipped)
    if (xt_le(bytes + *skipped, XT_LEGACY_PREFIX) == (uint64_t)numel) return true;
  return false;
}

static xt_status find_storage(const xt_checkpoint *c, const xt_node *key, uint64_t at, uint32_t *out, xt_error *error) {
  size_t *index = key->kind == XT_NODE_TEXT ? xt_table_get(&c->rebuild.by_key, key->text.data, key->text.size) : NULL;
  if (!index) return corrupt(at, error, "a listed storage is not used by any tensor");
  *out = (uint32_t)*index;
  return XT_STATUS_ok;
}

xt_status xt_legacy_locate_storage(xt_checkpoint *c, const xt_node *key, const uint8_t *bytes, uint64_t slack,
                                   uint64_t at, uint32_t *index, uint64_t *data_offset, xt_error *error) {
  uint64_t skipped;
  xt_status status = find_storage(c, key, at, index, error);
  if (status != XT_STATUS_ok) return status;
  const xt_storage *storage = &c->rebuild.storages[*index];
  if (!find_count(bytes, slack, storage->numel, &skipped))
    return corrupt(at, error, "the number of elements of a storage differs from the number in the pickle");
  *data_offset = at + skipped + XT_LEGACY_PREFIX;
  if (storage->bytes > c->file_size - *data_offset)
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)c->file_size,
                       "a storage ends at byte %" PRIu64 " but the file has only %" PRIu64
                       " bytes, probably an incomplete download; download it again",
                       *data_offset + storage->bytes, c->file_size);
  bool duplicate;
  xt_record *record =
      xt_records_add_stored(&c->directory, storage->key, storage->key_size, *data_offset, storage->bytes, &duplicate);
  if (duplicate) return corrupt(at, error, "duplicate storage key");
  if (!record) return xt_open_no_memory(error);
  c->records[*index] = record;
  return XT_STATUS_ok;
}

/* ---- Opening a file ---- */

static xt_status read_header(xt_checkpoint *c, work *w, xt_need *need, xt_error *error) {
  xt_status status;
  size_t size;
  if (!xt_window_scan_pickle(c, &w->header, w->at, &size, need, error, &status)) return status;
  const uint8_t *data = w->header.data + (w->at - w->header.at);
  status = xt_legacy_read_header(c, c->state - HEADER, data, size, w->at, error);
  w->at += size;
  c->state++;
  return status;
}

static xt_status read_object(xt_checkpoint *c, work *w, xt_need *need, xt_error *error) {
  xt_status status;
  size_t size;
  if (!xt_window_scan_pickle(c, &w->object, w->at, &size, need, error, &status)) return status;
  status = xt_legacy_read_object(c, w->object.data, size, w->at, error);
  w->at += size;
  c->state = KEYS;
  return status;
}

static xt_status read_keys(xt_checkpoint *c, work *w, xt_need *need, xt_error *error) {
  xt_status status;
  size_t size;
  if (!xt_window_scan_pickle(c, &w->keys, w->at, &size, need, error, &status)) return status;
  status = xt_legacy_read_keys(c, w->keys.data, size, w->at, &w->list, error);
  w->end = w->at += size;
  w->item = 1;
  c->state = STORAGES;
  return status;
}

static xt_status locate_storage(xt_checkpoint *c, work *w, const xt_node *key, xt_need *need, xt_error *error) {
  uint32_t index = 0;
  xt_status status = find_storage(c, key, w->end, &index, error);
  if (status != XT_STATUS_ok) return status;
  const xt_storage *storage = &c->rebuild.storages[index];
  uint64_t slack = w->item - 1, rest = c->file_size - w->end, data_offset;
  if (rest < XT_LEGACY_PREFIX + slack) slack = rest < XT_LEGACY_PREFIX ? 0 : rest - XT_LEGACY_PREFIX;
  /* read ahead over small storages, skip the data of large ones */
  size_t ahead = storage->bytes < SMALL_STORAGE ? AHEAD : 0;
  const uint8_t *bytes = xt_window_get(c, &w->counts, w->end, XT_LEGACY_PREFIX + slack, ahead, need, error, &status);
  if (!bytes) return status;
  status = xt_legacy_locate_storage(c, key, bytes, slack, w->end, &index, &data_offset, error);
  if (status != XT_STATUS_ok) return status;
  w->end = data_offset + storage->bytes;
  w->item = xt_dtype_get(storage->dtype)->size;
  w->next++;
  return XT_STATUS_ok;
}

/* Another save may follow. Fewer than an element's bytes are stray bytes of the last storage. */
static void find_next_save(xt_checkpoint *c, work *w) {
  uint64_t rest = c->file_size - w->end;
  c->next = rest && rest >= w->item ? w->end : 0;
}

static xt_status step(xt_checkpoint *c, xt_need *need, xt_error *error) {
  work *w = c->work;
  xt_status status = XT_STATUS_ok;
  if (c->state == START) {
    w = c->work = xt_open_alloc(c, sizeof *w);
    if (!w) return xt_open_no_memory(error);
    w->at = c->base;
    c->state = HEADER;
  }
  while (status == XT_STATUS_ok && !need->size) {
    if (c->state < OBJECT) status = read_header(c, w, need, error);
    else if (c->state == OBJECT) status = read_object(c, w, need, error);
    else if (c->state == KEYS) status = read_keys(c, w, need, error);
    else if (w->next < w->list->list.count) status = locate_storage(c, w, w->list->list.items[w->next], need, error);
    else {
      find_next_save(c, w);
      return xt_open_finish(c, NULL, error);
    }
  }
  return status;
}

const xt_format xt_legacy_format = {"legacy", true, step};
