/* torch.storage._load_from_bytes(bytes): how a plain pickle holds a storage. The bytes are a whole legacy save. */
#include <stdio.h>
#include <stdlib.h>

#include "core/base/cursor.h"
#include "core/pickle/rebuild_internal.h"
#include "core/pickle/unpickle.h"

enum { MAGIC, PROTOCOL, SYSTEM, OBJECT, KEYS, PICKLES, PREFIX = 8 };

/* Each key's count and elements, one after the other. */
static xt_status place(xt_meaning *m, xt_cursor *in, const xt_node *key) {
  size_t prefix = strlen(m->folder);
  char full[256];
  if (key->kind != XT_NODE_TEXT || key->text.size + prefix > sizeof full)
    return xt_meaning_corrupt(m, "a storage's key is none");
  memcpy(full, m->folder, prefix);
  memcpy(full + prefix, key->text.data, key->text.size);
  size_t *index = xt_table_get(&m->by_key, full, prefix + key->text.size);
  if (!index) return xt_meaning_corrupt(m, "a save inside lists a storage that no tensor has");
  xt_storage *storage = &m->storages[*index];
  uint64_t numel = xt_cursor_le(in, PREFIX);
  const uint8_t *data = in->short_ || numel != (uint64_t)storage->numel ? NULL : xt_cursor_take(in, storage->bytes);
  if (!data) return xt_meaning_corrupt(m, "a storage inside has another size than it says");
  storage->data = data;
  return XT_STATUS_ok;
}

static xt_status read(xt_meaning *m, xt_cursor *in, xt_node **out) {
  xt_node *parts[PICKLES];
  size_t used, before = m->storage_count;
  for (int i = MAGIC; i < PICKLES; i++) {
    m->ids = i == OBJECT ? XT_IDS_LEGACY : XT_IDS_NONE;
    xt_status status = xt_pickle_read(in->data + in->at, xt_cursor_left(in), m, &used, &parts[i]);
    if (status != XT_STATUS_ok) return status;
    in->at += used;
  }
  if (parts[KEYS]->kind != XT_NODE_LIST) return xt_meaning_corrupt(m, "the keys of its storages are no list");
  for (size_t i = 0; i < parts[KEYS]->list.count; i++) {
    xt_status status = place(m, in, parts[KEYS]->list.items[i]);
    if (status != XT_STATUS_ok) return status;
  }
  for (size_t i = before; i < m->storage_count; i++)
    if (!m->storages[i].data) return xt_meaning_corrupt(m, "a save inside lacks the bytes of a storage");
  *out = parts[OBJECT];
  return XT_STATUS_ok;
}

xt_status xt_load_from_bytes(xt_meaning *m, const xt_node *args, xt_node **out) {
  static const uint8_t magic[] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};
  const xt_node *bytes = xt_arg(args, 0);
  if (!bytes || (bytes->kind != XT_NODE_BYTES && bytes->kind != XT_NODE_TEXT) || bytes->text.size < 2 + sizeof magic ||
      memcmp(bytes->text.data + 2, magic, sizeof magic))
    return XT_STATUS_ok;
  if (bytes->text.size > m->allowance) return xt_meaning_corrupt(m, "a save inside is read more than once");
  m->allowance -= bytes->text.size;
  if (m->within) return xt_meaning_corrupt(m, "a save inside a save inside a pickle");
  char *folder = xt_arena_alloc(m->arena, 32, 1);
  if (!folder) return xt_meaning_no_memory(m);
  snprintf(folder, 32, "bytes%zu/", m->inside++);
  xt_ids ids = m->ids;
  int64_t at = m->at;
  const char *before = m->folder;
  xt_cursor in = {(const uint8_t *)bytes->text.data, bytes->text.size, 0, false};
  m->within = true;
  m->folder = folder;
  xt_status status = read(m, &in, out);
  m->within = false;
  m->folder = before;
  m->ids = ids;
  m->at = at;
  if (status != XT_STATUS_ok && m->error->offset >= 0) m->error->offset = at;
  return status;
}
