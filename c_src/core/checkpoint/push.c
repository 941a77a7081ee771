#include "core/checkpoint/push.h"

#include <inttypes.h>
#include <string.h>

#include "core/base/printable.h"
#include "core/checkpoint/format.h"

enum { AHEAD = 64 << 10, MIN_AHEAD = 256 };

xt_status xt_push_consume(xt_push *p, size_t n, size_t needed) {
  p->consumed = n;
  p->needed = needed;
  p->lookahead = 0;
  return XT_STATUS_ok;
}

xt_status xt_push_request(xt_push *p, size_t needed, size_t lookahead) {
  p->needed = needed;
  p->lookahead = lookahead;
  return XT_STATUS_ok;
}

bool xt_push_scan_pickle(xt_push *p, size_t *size, xt_status *status, xt_error *error) {
  const uint8_t *data = xt_push_data(p);
  uint64_t limit = p->checkpoint->opening->limits.pickle_bytes;
  xt_pickle_scan_result result = xt_pickle_scan(data, xt_push_available(p), &p->scan);
  xt_pickle_scan_state scan = p->scan;
  size_t at = scan.at;
  *status = XT_STATUS_ok;
  *size = at;
  if (result != XT_SCAN_SHORT) p->scan = (xt_pickle_scan_state){0};
  if (result == XT_SCAN_INVALID)
    *status = xt_error_at(error, XT_STATUS_corrupt, (int64_t)(p->at + at),
                          "invalid pickle: opcode 0x%02x does not exist", data[at]);
  else if (at > limit || (result == XT_SCAN_SHORT && scan.wanted > limit - at))
    *status =
        xt_error_at(error, XT_STATUS_limit, (int64_t)p->at,
                    "a pickle has more than %" PRIu64 " bytes; raise the limit with limits: [pickle_bytes: n]", limit);
  else if (result == XT_SCAN_END) return true;
  if (*status != XT_STATUS_ok) return false;
  /* not more than was needed so far: the bytes after a short pickle would be copied for nothing */
  *status = xt_push_request(p, at + (size_t)scan.wanted, at + MIN_AHEAD < AHEAD ? at + MIN_AHEAD : AHEAD);
  return false;
}

bool xt_push_put_off(xt_push *p) {
  p->put_off = p->brief;
  if (p->brief) p->light = false;
  return p->brief;
}

uint8_t *xt_push_copy(xt_push *p, const uint8_t *data, size_t size) {
  uint8_t *copy = xt_arena_alloc(&p->checkpoint->arena, size ? size : 1, 1);
  if (copy && size) memcpy(copy, data, size);
  return copy;
}

xt_status xt_push_described(xt_push *p, xt_error *error) {
  p->storages = p->checkpoint->storages.count;
  p->regions = xt_arena_alloc(&p->checkpoint->arena, p->storages + 1, sizeof *p->regions);
  p->wanted = xt_arena_alloc(&p->checkpoint->arena, p->storages + 1, sizeof *p->wanted);
  p->completed = xt_arena_alloc(&p->checkpoint->arena, p->storages + 1, sizeof *p->completed);
  if (!p->regions || !p->wanted || !p->completed) return xt_opening_no_memory(error);
  memset(p->wanted, true, p->storages + 1);
  p->light = !p->spool;

  for (size_t i = 0; i < p->storages && !p->spool && !p->format->compresses; i++) {
    const xt_storage *storage = &p->checkpoint->storages.list[i];
    bool in_stream = !storage->data && p->checkpoint->records[i];
    if (in_stream && __builtin_add_overflow(p->pending, storage->bytes, &p->pending)) p->pending = UINT64_MAX;
  }
  p->event = XT_PUSH_DESCRIBED;
  return XT_STATUS_ok;
}

xt_status xt_push_describe(xt_push *p, bool with_meta, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  xt_record *records = xt_arena_alloc(&c->arena, c->storages.count + 1, sizeof *records);
  if (!records || !xt_opening_reserve_records(c->opening)) return xt_opening_no_memory(error);
  for (size_t i = 0; i < c->storages.count; i++) {
    const xt_storage *storage = &c->storages.list[i];
    if (storage->data || (!with_meta && xt_storage_is_meta(storage))) continue;
    records[i].name = storage->key;
    records[i].name_size = storage->key_size;
    xt_record_set_data(&records[i], 0, storage->bytes);
    c->records[i] = &records[i];
  }
  xt_status status = xt_opening_finish(c->opening, NULL, error);
  return status == XT_STATUS_ok ? xt_push_described(p, error) : status;
}

/* Data that the parser does not wait for is refused: its region would replace one that tensors still need. */
xt_status xt_push_expect(const xt_push *p, uint32_t storage, xt_error *error) {
  const xt_storage *s = &p->checkpoint->storages.list[storage];
  if (!s->data && !p->completed[storage]) return XT_STATUS_ok;
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)p->at,
                     s->data ? "the stream contains data of storage %s, which is already inside the pickle"
                             : "the stream contains the data of storage %s twice",
                     xt_printable_text(s->key, s->key_size).text);
}

xt_status xt_push_receive(xt_push *p, uint32_t storage, xt_error *error) {
  xt_status status = xt_push_expect(p, storage, error);
  if (status != XT_STATUS_ok) return status;
  p->storage = storage;
  p->remaining = p->checkpoint->storages.list[storage].bytes;
  p->pending -= p->pending < p->remaining ? p->pending : p->remaining;
  p->crc = 0;
  p->receiving = true;
  p->reading = "a storage";
  return status;
}

xt_status xt_push_complete(xt_push *p, uint32_t storage, xt_region *region, xt_error *error) {
  xt_record_reader reader = {.stop = p->stop, .context = p->context};
  xt_status status = XT_STATUS_ok;
  p->regions[storage] = region;
  if (region && xt_checkpoint_needs_swap(p->checkpoint, storage))
    status = xt_record_reader_swap(&reader, region->data, region->size, p->checkpoint->storages.list[storage].element,
                                   error);
  if (status != XT_STATUS_ok) return status;
  p->completed[storage] = true;
  p->storage = storage;
  p->event = XT_PUSH_STORAGE;
  return status;
}

xt_status xt_push_end_spool(xt_push *p, size_t n) {
  p->spool_complete = true;
  return xt_push_consume(p, n, 0);
}
