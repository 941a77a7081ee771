/* Opens a legacy checkpoint. */
#include "core/formats/legacy.h"

#include <inttypes.h>
#include <string.h>

#include "core/base/cursor.h"

enum { PICKLES, STORAGES };
enum { AHEAD = 64 << 10, SMALL_STORAGE = 16 << 10, MAX_SLACK = 15 };

typedef struct {
  int pickle;                     /* the pickle that is read next */
  xt_window header, object, keys; /* the tree points into the last two, so they do not move */
  xt_window counts;               /* element counts of the storages */
  uint64_t at;                    /* offset of the next pickle */
  xt_legacy_order order;
  size_t next;   /* index of the next storage in the order */
  uint64_t end;  /* end of the previous storage's data */
  uint64_t item; /* element size of the previous storage */
} work;

static xt_status corrupt(uint64_t at, xt_error *error, const char *what) {
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)at, "invalid legacy checkpoint: %s", what);
}

/* ---- Parts of the file, shared with the push parser ---- */

xt_status xt_legacy_read_header(xt_opening *o, int pickle, const uint8_t *data, size_t size, uint64_t at,
                                xt_error *error) {
  xt_node *value;
  xt_status status = xt_opening_value(o, o->rebuild.strict, data, size, (int64_t)at, NULL, &value, error);
  if (status != XT_STATUS_ok) return status;
  if (pickle == XT_LEGACY_PICKLE_PROTOCOL && (value->kind != XT_NODE_INT || value->integer != XT_LEGACY_PROTOCOL))
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)at,
                       "unsupported protocol of a legacy checkpoint; expected %d", XT_LEGACY_PROTOCOL);
  if (pickle == XT_LEGACY_PICKLE_SYSTEM && value->kind != XT_NODE_DICT)
    return corrupt(at, error, "expected a dict as the third pickle");
  return status;
}

xt_status xt_legacy_read_object(xt_opening *o, const uint8_t *data, size_t size, uint64_t at, xt_error *error) {
  o->rebuild.ids = XT_IDS_LEGACY;
  return xt_opening_pickle(o, data, size, (int64_t)at, &o->checkpoint->root, error);
}

/* Finds the storage of each key. A key that is listed twice is an error later, when its record is added again. */
static xt_status find_storages(const xt_checkpoint *c, const xt_node *keys, uint64_t at, xt_legacy_order *order,
                               xt_error *error) {
  for (; order->count < keys->list.count; order->count++) {
    const xt_node *key = keys->list.items[order->count];
    const size_t *index =
        key->kind == XT_NODE_TEXT ? xt_table_get(&c->storages.by_key, key->text.data, key->text.size) : NULL;
    if (!index) return corrupt(at, error, "a listed storage is not used by any tensor");
    order->list[order->count] = (uint32_t)*index;
  }
  return XT_STATUS_ok;
}

xt_status xt_legacy_read_keys(xt_opening *o, const uint8_t *data, size_t size, uint64_t at, xt_legacy_order *order,
                              xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  xt_node *keys;
  xt_status status = xt_opening_value(o, o->rebuild.strict, data, size, (int64_t)at, NULL, &keys, error);
  if (status != XT_STATUS_ok) return status;
  if (keys->kind != XT_NODE_LIST) return corrupt(at, error, "expected a list of storage keys as the fifth pickle");
  size_t stored = 0; /* without numpy arrays, whose data is inside the pickle */
  for (size_t i = 0; i < c->storages.count; i++) stored += c->storages.list[i].data == NULL;
  if (keys->list.count != stored)
    return corrupt(at, error, "the number of listed storages differs from the number that the tensors use");
  order->list = xt_arena_alloc(&c->arena, stored, sizeof *order->list);
  if (!order->list || !xt_opening_reserve_records(o) || !xt_records_reserve(&c->directory, &c->arena, stored, true))
    return xt_opening_no_memory(error);
  return find_storages(c, keys, at, order, error);
}

/* Finds the element count, which may come after up to `slack` stray bytes: if a byte storage is viewed as a wider dtype
 * and its size is not a multiple of the element size, torch writes the remaining bytes as well. */
static bool find_count(const uint8_t *bytes, uint64_t slack, int64_t numel, uint64_t *skipped) {
  for (*skipped = 0; *skipped <= slack; ++*skipped)
    if (xt_le(bytes + *skipped, XT_LEGACY_PREFIX) == (uint64_t)numel) return true;
  return false;
}

xt_status xt_legacy_locate_storage(xt_checkpoint *c, uint32_t index, const uint8_t *bytes, uint64_t slack, uint64_t at,
                                   uint64_t *data_offset, xt_error *error) {
  uint64_t skipped;
  const xt_storage *storage = &c->storages.list[index];
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
  if (!record) return xt_opening_no_memory(error);
  c->records[index] = record;
  return XT_STATUS_ok;
}

/* ---- Opening a file ---- */

static xt_status read_pickle(xt_opening *o, work *w, xt_need *need, xt_error *error) {
  xt_status status;
  size_t size;
  bool object = w->pickle == XT_LEGACY_PICKLE_OBJECT, keys = w->pickle == XT_LEGACY_PICKLE_KEYS;
  xt_window *window = object ? &w->object : keys ? &w->keys : &w->header;
  if (!xt_window_scan_pickle(o, window, w->at, &size, need, error, &status)) return status;
  const uint8_t *data = window->data + (w->at - window->at);
  if (object) status = xt_legacy_read_object(o, data, size, w->at, error);
  else if (keys) status = xt_legacy_read_keys(o, data, size, w->at, &w->order, error);
  else status = xt_legacy_read_header(o, w->pickle, data, size, w->at, error);
  w->end = w->at += size;
  w->item = 1;
  if (++w->pickle == XT_LEGACY_PICKLES) o->state = STORAGES;
  return status;
}

/* The size of the next storages if they are small: it pays to read them for the element counts between them. */
static size_t small_storages(const xt_checkpoint *c, const work *w) {
  size_t size = 0;
  for (size_t i = w->next; i < w->order.count && size < AHEAD; i++) {
    const xt_storage *storage = &c->storages.list[w->order.list[i]];
    if (storage->bytes >= SMALL_STORAGE) break;
    size += storage->bytes + MAX_SLACK + XT_LEGACY_PREFIX;
  }
  return size;
}

static xt_status locate_storage(xt_opening *o, work *w, xt_need *need, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  uint32_t index = w->order.list[w->next];
  const xt_storage *storage = &c->storages.list[index];
  uint64_t slack = w->item - 1, rest = c->file_size - w->end, data_offset;
  if (rest < XT_LEGACY_PREFIX + slack) slack = rest < XT_LEGACY_PREFIX ? 0 : rest - XT_LEGACY_PREFIX;
  uint64_t size = XT_LEGACY_PREFIX + slack;
  size_t ahead = xt_window_has(&w->counts, w->end, size) ? 0 : small_storages(c, w);
  xt_status status;
  const uint8_t *bytes = xt_window_get(o, &w->counts, w->end, size, ahead, need, error, &status);
  if (!bytes) return status;
  status = xt_legacy_locate_storage(c, index, bytes, slack, w->end, &data_offset, error);
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

static xt_status open(xt_opening *o, xt_need *need, xt_error *error) {
  work *w = o->work;
  xt_status status = XT_STATUS_ok;
  if (!w->at) w->at = o->checkpoint->base;
  while (status == XT_STATUS_ok && !need->size) {
    if (o->state == PICKLES) status = read_pickle(o, w, need, error);
    else if (w->next < w->order.count) status = locate_storage(o, w, need, error);
    else {
      find_next_save(o->checkpoint, w);
      return xt_opening_finish(o, NULL, error);
    }
  }
  return status;
}

static bool starts_with(const uint8_t *head, size_t size, const char *prefix, size_t length) {
  return size >= length && !memcmp(head, prefix, length);
}

/* The file starts with a pickle of the magic number. From protocol 4 on the pickle has a FRAME opcode. Protocols 0 and
 * 1 write the number in decimal. */
static xt_match matches(const uint8_t *head, size_t size) {
  if (starts_with(head, size, XT_LEGACY_TEXT_MAGIC, sizeof XT_LEGACY_TEXT_MAGIC - 1)) return XT_MATCH_YES;
  if (size < 2 || head[0] != 0x80) return XT_MATCH_NO;
  size_t skip = size > 11 && head[2] == 0x95 ? 11 : 2;
  bool magic = starts_with(head + skip, size - skip, XT_LEGACY_MAGIC, sizeof XT_LEGACY_MAGIC - 1);
  return magic ? XT_MATCH_YES : XT_MATCH_NO;
}

const xt_format xt_legacy_format = {
    .name = "legacy",
    .at_any_offset = true,
    .matches = matches,
    .open_size = sizeof(work),
    .open = open,
    .push = &xt_legacy_push,
};
