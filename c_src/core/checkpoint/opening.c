#include "core/checkpoint/opening.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/printable.h"
#include "core/pickle/unpickle.h"

enum { AHEAD = 16 << 10, LARGE = 1 << 20 };

xt_opening *xt_opening_new(xt_checkpoint *c, const xt_limits *limits, bool strict, bool verify) {
  xt_opening *o = calloc(1, sizeof *o);
  if (!o) return NULL;
  o->checkpoint = c;
  o->limits = *limits;
  o->verify = verify;
  o->rebuild = (xt_rebuild){.arena = &c->arena, .strict = strict, .storages = &c->storages};
  o->rebuild.labels.allowance = &c->allowance;
  xt_opening_set_present(o, c->file_size);
  return o;
}

void xt_opening_free(xt_checkpoint *c) {
  if (!c->opening) return;
  xt_rebuild_free(&c->opening->rebuild);
  free(c->opening->work);
  free(c->opening);
  c->opening = NULL;
}

void xt_opening_restart(xt_opening *o) {
  free(o->work);
  o->work = NULL;
  o->state = 0;
  o->head = NULL;
  o->checkpoint->format = NULL;
}

void xt_opening_set_present(xt_opening *o, uint64_t bytes) {
  o->checkpoint->allowance.limit = o->limits.memory ? o->limits.memory : xt_allowance_for(bytes, o->limits.files);
}

void xt_opening_limit_present(xt_opening *o, uint64_t bytes) {
  xt_allowance *allowance = &o->checkpoint->allowance;
  uint64_t limit = xt_allowance_for(bytes, o->limits.files);
  if (!o->limits.memory && limit < allowance->limit) allowance->limit = limit;
}

xt_status xt_opening_no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while opening the checkpoint");
}

/* ---- Buffers ---- */

static bool reserve_slot(xt_checkpoint *c) {
  return xt_allowance_reserve(&c->allowance, &c->buffers, &c->buffer_room, c->buffer_count + 1, sizeof *c->buffers);
}

xt_status xt_opening_request(xt_opening *o, uint8_t **buffer, uint64_t offset, uint64_t size, xt_need *need,
                             xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  if (size >= LARGE) { /* the arena uses huge pages */
    *buffer = xt_arena_alloc_uncleared(&c->arena, size);
  } else {
    *buffer = reserve_slot(c) && xt_allowance_take(&c->allowance, size) ? malloc(size ? size : 1) : NULL;
    if (*buffer) c->buffers[c->buffer_count++] = *buffer;
  }
  if (!*buffer) return xt_opening_no_memory(error);
  *need = (xt_need){offset, size, *buffer};
  return XT_STATUS_ok;
}

/* ---- Windows ---- */

static bool resize(xt_checkpoint *c, xt_window *w, size_t size) {
  if (size <= w->capacity) return true;
  if (!w->slot && !reserve_slot(c)) return false;
  uint8_t *grown = xt_allowance_take(&c->allowance, size - w->capacity) ? realloc(w->data, size) : NULL;
  if (!grown) return false;
  if (!w->slot) w->slot = ++c->buffer_count;
  c->buffers[w->slot - 1] = w->data = grown;
  w->capacity = size;
  return true;
}

bool xt_window_has(const xt_window *w, uint64_t offset, uint64_t n) {
  return offset >= w->at && offset - w->at <= w->size && n <= w->size - (offset - w->at);
}

const uint8_t *xt_window_get(xt_opening *o, xt_window *w, uint64_t offset, uint64_t n, size_t ahead, xt_need *need,
                             xt_error *error, xt_status *status) {
  xt_checkpoint *c = o->checkpoint;
  *status = XT_STATUS_ok;
  if (offset > c->file_size || n > c->file_size - offset) {
    *status = xt_error_at(error, XT_STATUS_truncated, (int64_t)c->file_size,
                          "the file has %" PRIu64 " bytes but needs at least %" PRIu64
                          ", probably an incomplete download; download it again",
                          c->file_size, offset > UINT64_MAX - n ? UINT64_MAX : offset + n);
    return NULL;
  }
  if (xt_window_has(w, offset, n)) return w->data + (offset - w->at);
  uint64_t size = c->file_size - offset < n + ahead ? c->file_size - offset : n + ahead;
  /* a window that only grows keeps the bytes that it has */
  bool grows = offset == w->at && w->size;
  if (!resize(c, w, size)) {
    *status = xt_opening_no_memory(error);
    return NULL;
  }
  size_t old_size = grows ? w->size : 0;
  *need = (xt_need){offset + old_size, size - old_size, w->data + old_size};
  w->at = offset;
  w->size = size;
  return NULL;
}

bool xt_window_scan_pickle(xt_opening *o, xt_window *w, uint64_t offset, size_t *size, xt_need *need, xt_error *error,
                           xt_status *status) {
  uint64_t file_size = o->checkpoint->file_size, limit = o->limits.pickle_bytes;
  if (w->pickle != offset) w->pickle = offset, w->scan = (xt_pickle_scan_state){0};
  const uint8_t *data = xt_window_get(o, w, offset, 1, AHEAD, need, error, status);
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
    if (scan->at > limit || scan->wanted > limit) {
      if (scan->wanted > file_size)
        *status = xt_error_at(error, XT_STATUS_truncated, (int64_t)offset,
                              "a pickle extends past the end of the file, which has %" PRIu64
                              " bytes, probably an incomplete download; download it again",
                              file_size);
      else
        *status = xt_error_at(
            error, XT_STATUS_limit, (int64_t)offset,
            "a pickle has more than %" PRIu64 " bytes; raise the limit with limits: [pickle_bytes: n]", limit);
      return false;
    }
    xt_window_get(o, w, offset, scan->at + scan->wanted, available, need, error, status);
    return false;
  }
  *scan = (xt_pickle_scan_state){0};
  if (*size <= limit) return true;
  *status = xt_error_at(error, XT_STATUS_limit, (int64_t)offset,
                        "a pickle has %zu bytes, which exceeds the limit of %" PRIu64
                        "; raise it with limits: [pickle_bytes: n]",
                        *size, limit);
  return false;
}

/* ---- The tree ---- */

static xt_status unpickle(xt_rebuild *rebuild, const uint8_t *data, size_t size, int64_t at, size_t *used,
                          xt_node **root, xt_error *error) {
  rebuild->error = error;
  error->offset = -1;
  xt_status status = xt_unpickle(data, size, rebuild, used, root);
  if (status != XT_STATUS_ok && error->offset >= 0) error->offset = at < 0 ? -1 : error->offset + at;
  return status;
}

xt_status xt_opening_pickle(xt_opening *o, const uint8_t *data, size_t size, int64_t at, xt_node **root,
                            xt_error *error) {
  size_t used;
  return unpickle(&o->rebuild, data, size, at, &used, root, error);
}

/* The value may name storages. They are not those of the checkpoint's object. */
xt_status xt_opening_value(xt_opening *o, bool strict, const uint8_t *data, size_t size, int64_t at, size_t *used,
                           xt_node **value, xt_error *error) {
  xt_arena *arena = &o->checkpoint->arena;
  xt_storages storages = {.arena = arena, .max_tensor_bytes = o->limits.tensor_bytes};
  xt_rebuild rebuild = {.arena = arena, .strict = strict, .storages = &storages};
  size_t length;
  xt_status status = unpickle(&rebuild, data, size, at, used ? used : &length, value, error);
  xt_rebuild_free(&rebuild);
  xt_storages_free(&storages);
  return status;
}

bool xt_opening_reserve_records(xt_opening *o) {
  xt_checkpoint *c = o->checkpoint;
  c->records = xt_arena_alloc(&c->arena, c->storages.count + 1, sizeof *c->records);
  return c->records != NULL;
}

/* Makes records of the storages whose data is inside the pickle. */
static bool add_inline_records(xt_checkpoint *c) {
  for (size_t i = 0; i < c->storages.count; i++) {
    const xt_storage *storage = &c->storages.list[i];
    if (!storage->data) continue;
    if (!c->inline_records) c->inline_records = xt_arena_alloc(&c->arena, c->storages.count, sizeof *c->inline_records);
    if (!c->inline_records) return false;
    xt_record *record = c->records[i] = &c->inline_records[i];
    record->name = storage->key;
    record->name_size = storage->key_size;
    xt_record_set_data(record, XT_INLINE + (uintptr_t)storage->data, storage->bytes);
  }
  return true;
}

/* The formats find the records of the other storages. A file may list others than those that its tensors use. */
static xt_status check_records(const xt_checkpoint *c, xt_error *error) {
  for (size_t i = 0; i < c->storages.count; i++) {
    const xt_storage *storage = &c->storages.list[i];
    if (!c->records[i] && !xt_storage_is_meta(storage))
      return xt_error_set(error, XT_STATUS_corrupt, "the data of storage %s is missing but a tensor needs it",
                          xt_printable_text(storage->key, storage->key_size).text);
  }
  return XT_STATUS_ok;
}

xt_status xt_opening_finish(xt_opening *o, xt_node *more, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  xt_index_limits limits = {o->limits.nodes ? o->limits.nodes : UINT64_MAX, (uint32_t)o->limits.depth};
  if ((!c->records && !xt_opening_reserve_records(o)) || !add_inline_records(c) ||
      !xt_index_reserve(&c->index, &c->arena, c->storages.count))
    return xt_opening_no_memory(error);
  xt_status status = check_records(c, error);
  c->index.storages = &c->storages;
  if (status == XT_STATUS_ok) status = xt_index_build(&c->index, &c->arena, c->root, &limits, error);
  if (status == XT_STATUS_ok && more) status = xt_index_build(&c->index, &c->arena, more, &limits, error);
  return status;
}
