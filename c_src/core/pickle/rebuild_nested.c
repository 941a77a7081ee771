/* Rebuilds torch.storage._load_from_bytes(bytes), with which a plain pickle contains a storage. The bytes are a whole
 * legacy checkpoint: five pickles, then for each storage its number of elements (8 bytes) and its data. It is called a
 * nested checkpoint here. */
#include <stdio.h>
#include <stdlib.h>

#include "core/base/cursor.h"
#include "core/base/printable.h"
#include "core/pickle/legacy.h"
#include "core/pickle/rebuild_internal.h"
#include "core/pickle/unpickle.h"

static xt_status read_storage(xt_rebuild *r, xt_cursor *in, const xt_node *key) {
  size_t prefix = strlen(r->key_prefix);
  char full[256];
  if (key->kind != XT_NODE_TEXT || key->text.size + prefix > sizeof full)
    return xt_rebuild_corrupt(r, "invalid storage key in a nested checkpoint");
  memcpy(full, r->key_prefix, prefix);
  memcpy(full + prefix, key->text.data, key->text.size);
  size_t *index = xt_table_get(&r->storages->by_key, full, prefix + key->text.size);
  if (!index)
    return xt_rebuild_corrupt(r, "nested checkpoint lists storage %s, which its object does not use",
                              xt_printable_text(key->text.data, key->text.size).text);
  xt_storage *storage = &r->storages->list[*index];
  uint64_t numel = xt_cursor_le(in, XT_LEGACY_PREFIX);
  const uint8_t *data = in->short_ || numel != (uint64_t)storage->numel ? NULL : xt_cursor_take(in, storage->bytes);
  if (!data)
    return xt_rebuild_corrupt(r, "storage %s of a nested checkpoint is truncated or has an unexpected size",
                              xt_printable_text(key->text.data, key->text.size).text);
  storage->data = data;
  return XT_STATUS_ok;
}

static xt_status read_checkpoint(xt_rebuild *r, xt_cursor *in, xt_node **out) {
  xt_node *parts[XT_LEGACY_PICKLES];
  size_t used, before = r->storages->count;
  for (int i = 0; i < XT_LEGACY_PICKLES; i++) {
    r->ids = i == XT_LEGACY_PICKLE_OBJECT ? XT_IDS_LEGACY : XT_IDS_NONE;
    xt_status status = xt_unpickle(in->data + in->at, xt_cursor_left(in), r, &used, &parts[i]);
    if (status != XT_STATUS_ok) return status;
    in->at += used;
  }
  const xt_node *keys = parts[XT_LEGACY_PICKLE_KEYS];
  if (keys->kind != XT_NODE_LIST) return xt_rebuild_corrupt(r, "storage keys of a nested checkpoint are not a list");
  for (size_t i = 0; i < keys->list.count; i++) {
    xt_status status = read_storage(r, in, keys->list.items[i]);
    if (status != XT_STATUS_ok) return status;
  }
  for (size_t i = before; i < r->storages->count; i++)
    if (!r->storages->list[i].data)
      return xt_rebuild_corrupt(r, "nested checkpoint does not contain the data of storage %s",
                                xt_printable_text(r->storages->list[i].key, r->storages->list[i].key_size).text);
  *out = parts[XT_LEGACY_PICKLE_OBJECT];
  return XT_STATUS_ok;
}

xt_status xt_rebuild_nested(xt_rebuild *r, const xt_node *args, xt_node **out) {
  enum { MAGIC_SIZE = sizeof XT_LEGACY_MAGIC - 1 };
  const xt_node *bytes = xt_node_arg(args, 0);
  if (!bytes || (bytes->kind != XT_NODE_BYTES && bytes->kind != XT_NODE_TEXT) || bytes->text.size < 2 + MAGIC_SIZE ||
      memcmp(bytes->text.data + 2, XT_LEGACY_MAGIC, MAGIC_SIZE))
    return XT_STATUS_ok;
  if (r->nested) return xt_rebuild_corrupt(r, "nested checkpoint inside a nested checkpoint");
  /* Nested checkpoints that are larger in total than the pickle share bytes. They are refused, because a small file
   * could otherwise cause any amount of work. */
  if (bytes->text.size > r->nested_bytes_left) return xt_rebuild_corrupt(r, "nested checkpoint is used more than once");
  r->nested_bytes_left -= bytes->text.size;
  char *prefix = xt_arena_alloc(r->arena, 32, 1);
  if (!prefix) return xt_rebuild_no_memory(r);
  snprintf(prefix, 32, "bytes%zu/", r->nested_count++);
  xt_persistent_ids ids = r->ids;
  int64_t at = r->at;
  const char *before = r->key_prefix;
  xt_cursor in = {(const uint8_t *)bytes->text.data, bytes->text.size, 0, false};
  r->nested = true;
  r->key_prefix = prefix;
  xt_status status = read_checkpoint(r, &in, out);
  r->nested = false;
  r->key_prefix = before;
  r->ids = ids;
  r->at = at;
  if (status != XT_STATUS_ok && r->error->offset >= 0) r->error->offset = at;
  return status;
}
