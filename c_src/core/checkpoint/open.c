#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/formats/format.h"
#include "core/pickle/scan.h"
#include "core/pickle/unpickle.h"

enum { AHEAD = 16 << 10, LARGE = 1 << 20 };

xt_status xt_open_no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while opening the checkpoint");
}

/* ---- Buffers ---- */

static void **new_slot(xt_checkpoint *c) {
  if (c->buffer_count == c->buffer_capacity) {
    size_t capacity = c->buffer_capacity ? 2 * c->buffer_capacity : 16;
    if (!xt_allowance_take(&c->allowance, (capacity - c->buffer_capacity) * sizeof *c->buffers)) return NULL;
    void **grown = realloc(c->buffers, capacity * sizeof *grown);
    if (!grown) return NULL;
    c->buffers = grown;
    c->buffer_capacity = capacity;
  }
  return &c->buffers[c->buffer_count];
}

void *xt_open_alloc(xt_checkpoint *c, size_t size) {
  void **slot = new_slot(c);
  void *buffer = slot && xt_allowance_take(&c->allowance, size) ? calloc(1, size ? size : 1) : NULL;
  if (!buffer) return NULL;
  c->buffer_count++;
  return *slot = buffer;
}

xt_status xt_open_request(xt_checkpoint *c, uint8_t **buffer, uint64_t offset, uint64_t size, xt_need *need,
                          xt_error *error) {
  if (size >= LARGE) { /* the arena uses huge pages */
    *buffer = xt_arena_alloc(&c->arena, size, 1);
  } else {
    void **slot = new_slot(c);
    *buffer = slot && xt_allowance_take(&c->allowance, size) ? malloc(size ? size : 1) : NULL;
    if (*buffer) c->buffers[c->buffer_count++] = *buffer;
  }
  if (!*buffer) return xt_open_no_memory(error);
  *need = (xt_need){offset, size, *buffer};
  return XT_STATUS_ok;
}

/* ---- Windows ---- */

static bool resize(xt_checkpoint *c, xt_window *w, size_t size) {
  if (size <= w->capacity) return true;
  void *old = w->data;
  void **slot = NULL;
  for (size_t i = 0; old && i < c->buffer_count; i++)
    if (c->buffers[i] == old) slot = &c->buffers[i];
  bool is_new = !slot;
  if (is_new) slot = new_slot(c);
  uint8_t *grown = slot && xt_allowance_take(&c->allowance, size - w->capacity) ? realloc(old, size) : NULL;
  if (!grown) return false;
  *slot = w->data = grown;
  w->capacity = size;
  if (is_new) c->buffer_count++;
  return true;
}

const uint8_t *xt_window_get(xt_checkpoint *c, xt_window *w, uint64_t offset, uint64_t n, size_t ahead, xt_need *need,
                             xt_error *error, xt_status *status) {
  *status = XT_STATUS_ok;
  if (offset > c->file_size || n > c->file_size - offset) {
    *status = xt_error_at(error, XT_STATUS_truncated, (int64_t)c->file_size,
                          "the file has %" PRIu64 " bytes but needs at least %" PRIu64
                          ", probably an incomplete download; download it again",
                          c->file_size, offset > UINT64_MAX - n ? UINT64_MAX : offset + n);
    return NULL;
  }
  if (offset >= w->at && offset - w->at <= w->size && n <= w->size - (offset - w->at))
    return w->data + (offset - w->at);
  uint64_t size = c->file_size - offset < n + ahead ? c->file_size - offset : n + ahead;
  /* a window that only grows keeps the bytes that it has */
  bool grows = offset == w->at && w->size;
  if (!resize(c, w, size)) {
    *status = xt_open_no_memory(error);
    return NULL;
  }
  size_t old_size = grows ? w->size : 0;
  *need = (xt_need){offset + old_size, size - old_size, w->data + old_size};
  w->at = offset;
  w->size = size;
  return NULL;
}

bool xt_window_scan_pickle(xt_checkpoint *c, xt_window *w, uint64_t offset, size_t *size, xt_need *need,
                           xt_error *error, xt_status *status) {
  if (w->pickle != offset) w->pickle = offset, w->scan = (xt_pickle_scan_state){0};
  const uint8_t *data = xt_window_get(c, w, offset, 1, AHEAD, need, error, status);
  if (!data) return false;
  size_t available = w->size - (size_t)(offset - w->at);
  xt_pickle_scan_state *scan = &w->scan;
  switch (xt_pickle_scan(data, available, scan)) {
  case XT_SCAN_END: *size = scan->at; break;
  case XT_SCAN_INVALID:
    *status = xt_error_at(error, XT_STATUS_corrupt, (int64_t)(offset + scan->at),
                          "invalid pickle: opcode 0x%02x does not exist", data[scan->at]);
    return false;
  default:
    if (scan->at > c->limits.pickle_bytes || scan->wanted > c->limits.pickle_bytes) {
      if (scan->wanted > c->file_size)
        *status = xt_error_at(error, XT_STATUS_truncated, (int64_t)offset,
                              "a pickle extends past the end of the file, which has %" PRIu64
                              " bytes, probably an incomplete download; download it again",
                              c->file_size);
      else
        *status =
            xt_error_at(error, XT_STATUS_limit, (int64_t)offset,
                        "a pickle has more than %" PRIu64 " bytes; raise the limit with limits: [pickle_bytes: n]",
                        c->limits.pickle_bytes);
      return false;
    }
    xt_window_get(c, w, offset, scan->at + scan->wanted, available, need, error, status);
    return false;
  }
  *scan = (xt_pickle_scan_state){0};
  if (*size <= c->limits.pickle_bytes) return true;
  *status = xt_error_at(error, XT_STATUS_limit, (int64_t)offset,
                        "a pickle has %zu bytes, which exceeds the limit of %" PRIu64
                        "; raise it with limits: [pickle_bytes: n]",
                        *size, c->limits.pickle_bytes);
  return false;
}

/* ---- The tree ---- */

xt_status xt_open_first_pickle(xt_rebuild *rebuild, const uint8_t *data, size_t size, int64_t at, size_t *used,
                               xt_node **root, xt_error *error) {
  rebuild->error = error;
  error->offset = -1;
  xt_status status = xt_unpickle(data, size, rebuild, used, root);
  if (status != XT_STATUS_ok && error->offset >= 0) error->offset = at < 0 ? -1 : error->offset + at;
  return status;
}

xt_status xt_open_pickle(xt_rebuild *rebuild, const uint8_t *data, size_t size, int64_t at, xt_node **root,
                         xt_error *error) {
  size_t used;
  return xt_open_first_pickle(rebuild, data, size, at, &used, root, error);
}

static bool is_meta(const xt_storage *storage) {
  return storage->location_size == 4 && !memcmp(storage->location, "meta", 4);
}

static xt_status find_record(xt_checkpoint *c, size_t i, xt_error *error) {
  const xt_storage *storage = &c->rebuild.storages[i];
  char name[128] = "data/";
  size_t prefix = storage->key_size > 10 && !memcmp(storage->key, "constants/", 10) ? 0 : 5;
  if (storage->key_size > sizeof name - 6)
    return xt_error_set(error, XT_STATUS_corrupt, "the key of a storage has %zu bytes; at most %zu are supported",
                        storage->key_size, sizeof name - 6);
  memcpy(name + prefix, storage->key, storage->key_size);
  name[prefix + storage->key_size] = 0;
  xt_record *record = xt_records_find(&c->directory, name, prefix + storage->key_size);
  if (!record) return xt_error_set(error, XT_STATUS_corrupt, "the record %s is missing but a tensor needs it", name);
  uint64_t item = xt_dtype_get(storage->dtype)->size;
  /* the record may have fewer than an element's bytes more: torch writes them if a byte storage is viewed as a wider
   * dtype and its size is not a multiple of the element size */
  if (record->size < storage->bytes || record->size - storage->bytes >= item)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header,
                       "the record %s has %" PRIu64 " bytes but its storage has %" PRIu64, name, record->size,
                       storage->bytes);
  c->records[i] = record;
  return xt_checkpoint_check_method(record, error);
}

static void set_inline_record(xt_checkpoint *c, size_t i) {
  const xt_storage *storage = &c->rebuild.storages[i];
  xt_record *record = &c->inline_records[i];
  record->name = storage->key;
  record->name_size = storage->key_size;
  xt_record_set_data(record, XT_INLINE + (uintptr_t)storage->data, storage->bytes);
  c->records[i] = record;
}

bool xt_open_reserve_records(xt_checkpoint *c) {
  c->records = xt_arena_alloc(&c->arena, c->rebuild.storage_count + 1, sizeof *c->records);
  return c->records != NULL;
}

xt_status xt_open_finish(xt_checkpoint *c, xt_node *more, xt_error *error) {
  size_t count = c->rebuild.storage_count;
  bool any_inline = false;
  for (size_t i = 0; i < count; i++) any_inline |= c->rebuild.storages[i].data != NULL;
  if (!c->records && !xt_open_reserve_records(c)) return xt_open_no_memory(error);
  if (any_inline) c->inline_records = xt_arena_alloc(&c->arena, count, sizeof *c->inline_records);
  if (any_inline && !c->inline_records) return xt_open_no_memory(error);
  for (size_t i = 0; i < count; i++) {
    xt_status status = XT_STATUS_ok;
    if (c->rebuild.storages[i].data) set_inline_record(c, i);
    else if (!c->records[i] && !is_meta(&c->rebuild.storages[i])) status = find_record(c, i, error);
    if (status != XT_STATUS_ok) return status;
  }
  xt_index_limits limits = {c->limits.nodes ? c->limits.nodes : UINT64_MAX, (uint32_t)c->limits.depth};
  if (!xt_index_reserve(&c->index, &c->arena, count)) return xt_open_no_memory(error);
  xt_status status = xt_index_build(&c->index, &c->arena, c->root, &limits, error);
  if (status == XT_STATUS_ok && more) status = xt_index_build(&c->index, &c->arena, more, &limits, error);
  return status;
}
