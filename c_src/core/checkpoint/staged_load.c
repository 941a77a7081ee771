#include "core/checkpoint/staged_load.h"

#include <stdlib.h>
#include <string.h>

enum { XT_MAX_ELEMENT = 16 }; /* bytes */

static xt_record *record_of(const xt_staged_load *l, size_t i) {
  return l->units[i].memory ? NULL : l->reader.checkpoint->records[l->units[i].storage];
}

static bool needs_swap(const xt_staged_load *l, const xt_staged_unit *unit) {
  return !unit->memory && xt_checkpoint_needs_swap(l->reader.checkpoint, unit->storage);
}

/* ---- Begin ---- */

typedef struct {
  uint64_t header, from;
  xt_staged_unit unit;
} placement;

static int compare_placements(const void *a, const void *b) {
  const placement *x = a, *y = b;
  if (x->header != y->header) return x->header < y->header ? -1 : 1;
  return x->from < y->from ? -1 : x->from > y->from;
}

xt_status xt_staged_load_begin(xt_staged_load *l, const xt_record_reader *reader, const xt_stage_sink *sink,
                               xt_staged_unit *units, size_t count, xt_error *error) {
  memset(l, 0, sizeof *l);
  l->reader = *reader;
  l->sink = *sink;
  l->units = units;
  l->count = count;
  placement *placements = calloc(count + 1, sizeof *placements);
  if (!placements) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors");
  for (size_t i = 0; i < count; i++) {
    const xt_record *record = record_of(l, i);
    placements[i] = (placement){record ? record->header : 0, units[i].from, units[i]};
    l->total += units[i].size;
  }
  qsort(placements, count, sizeof *placements, compare_placements);
  for (size_t i = 0; i < count; i++) units[i] = placements[i].unit;
  free(placements);
  return XT_STATUS_ok;
}

/* ---- One buffer ---- */

/* Returns the number of units from the current one on whose records are read together, with their headers, into one
 * buffer: whole, adjacent, not compressed, and of the same queue. */
static size_t run_length(const xt_staged_load *l) {
  size_t n = 0;
  const xt_record *first = record_of(l, l->next), *before = NULL;
  if (l->at || !first || first->header >= XT_INLINE) return 0;
  for (size_t i = l->next; i < l->count; i++, n++) {
    const xt_record *record = record_of(l, i);
    if (!record || record->method != XT_RECORD_STORED || l->units[i].size != record->size ||
        l->units[i].queue != l->units[l->next].queue || record->end - first->header > XT_STAGE_BYTES ||
        (before && before->end != record->header))
      break;
    before = record;
  }
  return n;
}

static xt_status put(xt_staged_load *l, size_t i, uint8_t *data, size_t from, size_t size, xt_error *error) {
  const xt_staged_unit *unit = &l->units[i];
  xt_status status = XT_STATUS_ok;
  if (needs_swap(l, unit))
    status = xt_record_reader_swap(&l->reader, data, size, l->reader.checkpoint->storages.list[unit->storage].element,
                                   error);
  l->done += size;
  return status == XT_STATUS_ok && size ? l->sink.put(l->sink.context, unit->id, from, l->at, size, error) : status;
}

static xt_status stage_run(xt_staged_load *l, size_t n, uint8_t *buffer, xt_error *error) {
  uint64_t start = record_of(l, l->next)->header, data;
  size_t size = record_of(l, l->next + n - 1)->end - start;
  xt_status status = xt_record_reader_fetch(&l->reader, start, buffer, size, error);
  for (size_t end = l->next + n; l->next < end && status == XT_STATUS_ok; l->next++) {
    xt_record *record = record_of(l, l->next);
    uint32_t crc = 0;
    status = xt_checkpoint_locate(l->reader.checkpoint, record, buffer + (record->header - start), &data, error);
    if (status != XT_STATUS_ok) break;
    uint8_t *bytes = buffer + (data - start);
    if (l->reader.verify) status = xt_record_reader_crc(&l->reader, bytes, record->size, &crc, error);
    if (status == XT_STATUS_ok && l->reader.verify) status = xt_record_verify(record, crc, error);
    if (status == XT_STATUS_ok) status = put(l, l->next, bytes, data - start, record->size, error);
  }
  return status;
}

/* Reads the next bytes of the current unit: as many as are there, if the caller has read them. */
static xt_status read_piece(xt_staged_load *l, uint8_t *buffer, size_t *size, xt_error *error) {
  const xt_staged_unit *unit = &l->units[l->next];
  const xt_record_reader *reader = &l->reader;
  uint64_t data;
  const uint8_t *memory = unit->memory ? unit->memory : l->whole ? l->whole->data : NULL;
  if (memory) {
    memcpy(buffer, memory + unit->from + l->at, *size);
    return xt_record_reader_check_stop(reader, error);
  }
  xt_status status = xt_record_reader_data_offset(reader, record_of(l, l->next), &data, error);
  if (status != XT_STATUS_ok) return status;
  uint64_t from = data + unit->from + l->at;
  if (data < XT_INLINE && l->need.size && from < l->need.offset + l->need.size &&
      l->need.offset + l->need.size - from < *size) {
    *size = (size_t)(l->need.offset + l->need.size - from);
    if (needs_swap(l, unit)) *size -= *size % XT_MAX_ELEMENT; /* whole elements */
  }
  return xt_record_reader_fetch(reader, from, buffer, *size, error);
}

static xt_status stage_piece(xt_staged_load *l, uint8_t *buffer, xt_error *error) {
  const xt_staged_unit *unit = &l->units[l->next];
  const xt_record *record = record_of(l, l->next);
  size_t size = unit->size - l->at < XT_STAGE_BYTES ? (size_t)(unit->size - l->at) : XT_STAGE_BYTES;
  bool verify = l->reader.verify && record && !l->whole; /* compressed data was verified */
  xt_status status = read_piece(l, buffer, &size, error);
  if (status == XT_STATUS_ok && verify) status = xt_record_reader_crc(&l->reader, buffer, size, &l->crc, error);
  if (status == XT_STATUS_ok) status = put(l, l->next, buffer, 0, size, error);
  l->at += size;
  if (status != XT_STATUS_ok || l->at < unit->size) return status;
  if (verify) status = xt_record_verify(record, l->crc, error);
  xt_region_drop(l->whole);
  l->whole = NULL;
  l->next++;
  l->at = l->crc = 0;
  return status;
}

static bool is_deflated(const xt_staged_load *l) {
  const xt_record *record = record_of(l, l->next);
  return record && record->method != XT_RECORD_STORED;
}

/* Fills and passes on one buffer. Sets *waits if there is none. */
static xt_status stage_next(xt_staged_load *l, bool *waits, xt_error *error) {
  xt_staged_unit *unit = &l->units[l->next];
  uint8_t *buffer;
  xt_status status = XT_STATUS_ok;
  *waits = false;
  if (!unit->size) {
    l->next++;
    return XT_STATUS_ok;
  }
  if (is_deflated(l) && !l->whole) status = xt_record_reader_whole(&l->reader, record_of(l, l->next), &l->whole, error);
  if (status == XT_STATUS_ok) status = l->sink.take(l->sink.context, unit->queue, &buffer, error);
  if (status != XT_STATUS_ok) return status;
  *waits = !buffer;
  if (!buffer) return XT_STATUS_ok;
  uint32_t queue = unit->queue;
  size_t n = run_length(l);
  status = n ? stage_run(l, n, buffer, error) : stage_piece(l, buffer, error);
  return status == XT_STATUS_ok ? l->sink.pass(l->sink.context, queue, error) : status;
}

static xt_status check_failed(const xt_staged_load *l, xt_error *error) {
  return l->failed ? xt_error_set(error, XT_STATUS_stale, "this load has already failed; start a new one")
                   : XT_STATUS_ok;
}

xt_status xt_staged_load_step(xt_staged_load *l, uint64_t budget, xt_staged_state *state, xt_error *error) {
  uint64_t stop_at = l->done + budget;
  bool waits = false;
  xt_status status = check_failed(l, error);
  while (status == XT_STATUS_ok && !waits && l->done < stop_at && l->next < l->count)
    status = stage_next(l, &waits, error);
  l->failed = status != XT_STATUS_ok;
  *state = waits ? XT_STAGED_WAITING : l->next < l->count ? XT_STAGED_MORE : XT_STAGED_FINISHED;
  return status;
}

/* ---- Files that the caller reads ---- */

/* Returns the range of the file that the current unit needs next; empty if it needs none. */
static xt_need next_need(const xt_staged_load *l) {
  const xt_record *record = record_of(l, l->next);
  const xt_staged_unit *unit = &l->units[l->next];
  if (!record || !unit->size || l->whole || record->header >= XT_INLINE) return (xt_need){0, 0, NULL};
  size_t n = run_length(l);
  if (n) return (xt_need){record->header, record_of(l, l->next + n - 1)->end - record->header, NULL};
  if (is_deflated(l)) return xt_checkpoint_record_range(l->reader.checkpoint, record);
  xt_need range = xt_checkpoint_locate_need(l->reader.checkpoint, record);
  if (range.size && !unit->from) range = xt_checkpoint_record_range(l->reader.checkpoint, record);
  if (!range.size) range = (xt_need){atomic_load(&record->data_offset) + unit->from + l->at, unit->size - l->at, NULL};
  if (range.size > XT_STAGE_BYTES) range.size = XT_STAGE_BYTES;
  return range;
}

/* Uses the bytes of the need. Those that only locate a record are used without a buffer. */
static xt_status use_bytes(xt_staged_load *l, xt_region *bytes, bool *waits, xt_error *error) {
  xt_record *record = record_of(l, l->next);
  uint64_t data;
  l->reader.memory = bytes;
  l->reader.memory_at = l->need.offset;
  bool locates = l->units[l->next].from && xt_checkpoint_locate_need(l->reader.checkpoint, record).size;
  xt_status status =
      locates ? xt_record_reader_data_offset(&l->reader, record, &data, error) : stage_next(l, waits, error);
  l->reader.memory = NULL;
  l->reader.memory_at = 0;
  return status;
}

xt_status xt_staged_load_fill(xt_staged_load *l, xt_region *bytes, xt_staged_state *state, bool *again,
                              xt_error *error) {
  bool waits = false;
  xt_status status = check_failed(l, error);
  *again = false;
  if (status == XT_STATUS_ok && bytes && (l->next == l->count || bytes->size != l->need.size))
    status = xt_error_set(error, XT_STATUS_io, "the source returned %zu bytes, expected %zu", bytes->size,
                          (size_t)l->need.size);
  if (status == XT_STATUS_ok && bytes) status = use_bytes(l, bytes, &waits, error);
  *again = waits && !l->whole;
  if (!*again) l->need = (xt_need){0, 0, NULL};
  while (status == XT_STATUS_ok && !waits && l->next < l->count && !(l->need = next_need(l)).size)
    status = stage_next(l, &waits, error);
  l->failed = status != XT_STATUS_ok;
  *state = waits ? XT_STAGED_WAITING : l->next < l->count ? XT_STAGED_MORE : XT_STAGED_FINISHED;
  return status;
}

size_t xt_staged_load_ahead(const xt_staged_load *load, xt_need *ranges, size_t max) {
  xt_staged_load l = *load; /* walks on with a copy */
  size_t count = 0;
  uint64_t end = l.need.offset + l.need.size;
  for (l.at = 0; l.need.size && l.next < l.count && count < max;) {
    const xt_record *record = record_of(&l, l.next);
    bool whole = record && l.units[l.next].size == record->size && record->header < XT_INLINE;
    xt_need range = whole ? xt_checkpoint_record_range(l.reader.checkpoint, record) : (xt_need){0, 0, NULL};
    size_t n = range.offset >= end ? run_length(&l) : 0;
    if (n) range = (xt_need){record->header, record_of(&l, l.next + n - 1)->end - record->header, NULL};
    l.next += n;
    if (!n && range.offset + range.size <= end) {
      l.next++;
      continue;
    }
    uint64_t from = range.offset > end ? range.offset : end, left = range.offset + range.size - from;
    ranges[count] = (xt_need){from, left < XT_STAGE_BYTES ? left : XT_STAGE_BYTES, NULL};
    end = from + ranges[count++].size;
  }
  return count;
}

void xt_staged_load_free(xt_staged_load *l) {
  xt_region_drop(l->whole);
  free(l->units);
  memset(l, 0, sizeof *l);
}
