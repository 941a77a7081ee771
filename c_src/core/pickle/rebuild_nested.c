/* torch.storage._load_from_bytes(bytes): how a plain pickle holds a storage. The bytes are a whole legacy save. */
#include <stdio.h>
#include <stdlib.h>

#include "core/base/cursor.h"
#include "core/pickle/rebuild_internal.h"
#include "core/pickle/unpickle.h"

enum { MAGIC, PROTOCOL, SYSTEM, OBJECT, KEYS, PICKLES, PREFIX = 8 };

/* Each key's count and elements, one after the other. */
static xt_status read_storage(xt_rebuild *r, xt_cursor *in, const xt_node *key) {
  size_t prefix = strlen(r->folder);
  char full[256];
  if (key->kind != XT_NODE_TEXT || key->text.size + prefix > sizeof full)
    return xt_rebuild_corrupt(r, "a storage's key is none");
  memcpy(full, r->folder, prefix);
  memcpy(full + prefix, key->text.data, key->text.size);
  size_t *index = xt_table_get(&r->by_key, full, prefix + key->text.size);
  if (!index) return xt_rebuild_corrupt(r, "a save inside lists a storage that no tensor has");
  xt_storage *storage = &r->storages[*index];
  uint64_t numel = xt_cursor_le(in, PREFIX);
  const uint8_t *data = in->short_ || numel != (uint64_t)storage->numel ? NULL : xt_cursor_take(in, storage->bytes);
  if (!data) return xt_rebuild_corrupt(r, "a storage inside has another size than it says");
  storage->data = data;
  return XT_STATUS_ok;
}

static xt_status read(xt_rebuild *r, xt_cursor *in, xt_node **out) {
  xt_node *parts[PICKLES];
  size_t used, before = r->storage_count;
  for (int i = MAGIC; i < PICKLES; i++) {
    r->ids = i == OBJECT ? XT_IDS_LEGACY : XT_IDS_NONE;
    xt_status status = xt_unpickle(in->data + in->at, xt_cursor_left(in), r, &used, &parts[i]);
    if (status != XT_STATUS_ok) return status;
    in->at += used;
  }
  if (parts[KEYS]->kind != XT_NODE_LIST) return xt_rebuild_corrupt(r, "the keys of its storages are no list");
  for (size_t i = 0; i < parts[KEYS]->list.count; i++) {
    xt_status status = read_storage(r, in, parts[KEYS]->list.items[i]);
    if (status != XT_STATUS_ok) return status;
  }
  for (size_t i = before; i < r->storage_count; i++)
    if (!r->storages[i].data) return xt_rebuild_corrupt(r, "a save inside lacks the bytes of a storage");
  *out = parts[OBJECT];
  return XT_STATUS_ok;
}

xt_status xt_rebuild_nested(xt_rebuild *r, const xt_node *args, xt_node **out) {
  static const uint8_t magic[] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};
  const xt_node *bytes = xt_node_arg(args, 0);
  if (!bytes || (bytes->kind != XT_NODE_BYTES && bytes->kind != XT_NODE_TEXT) || bytes->text.size < 2 + sizeof magic ||
      memcmp(bytes->text.data + 2, magic, sizeof magic))
    return XT_STATUS_ok;
  if (bytes->text.size > r->allowance) return xt_rebuild_corrupt(r, "a save inside is read more than once");
  r->allowance -= bytes->text.size;
  if (r->within) return xt_rebuild_corrupt(r, "a save inside a save inside a pickle");
  char *folder = xt_arena_alloc(r->arena, 32, 1);
  if (!folder) return xt_rebuild_no_memory(r);
  snprintf(folder, 32, "bytes%zu/", r->inside++);
  xt_persistent_ids ids = r->ids;
  int64_t at = r->at;
  const char *before = r->folder;
  xt_cursor in = {(const uint8_t *)bytes->text.data, bytes->text.size, 0, false};
  r->within = true;
  r->folder = folder;
  xt_status status = read(r, &in, out);
  r->within = false;
  r->folder = before;
  r->ids = ids;
  r->at = at;
  if (status != XT_STATUS_ok && r->error->offset >= 0) r->error->offset = at;
  return status;
}
