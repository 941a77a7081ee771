/* Batch loads of files that the caller reads. */
#include <string.h>

#include "core/checkpoint/batch_parts.h"

enum {
  SOURCE_WHOLE = 32 << 20, /* a storage up to this size is one range that the caller reads, and used in place */
  SOURCE_PIECE = 8 << 20,  /* size of the ranges of a larger storage, whose bytes are copied */
  SOURCE_SLACK = 1 << 18,  /* a range may be larger by this, rather than leave a small rest */
  DATA_ALIGNMENT = 64      /* of data in zip files; bytes that are read from such an offset on can be used in place */
};

static xt_status read_next(xt_batch_load *l, xt_error *error) {
  l->done += xt_batch_record(l, l->next)->size;
  return xt_batch_read_memory(l, &l->reader, l->next, 1, error);
}

/* Returns the range of a record alone: its data, and the header before it if that has not been read. */
static xt_need record_need(const xt_batch_load *l, const xt_record *record) {
  xt_need range = xt_checkpoint_record_range(l->reader.checkpoint, record);
  size_t before = atomic_load(&record->data_offset) ? 0 : range.offset % DATA_ALIGNMENT;
  return (xt_need){range.offset - before, range.size + before, NULL};
}

static xt_status make_empty(xt_batch_load *l, uint32_t storage, xt_error *error) {
  xt_region *region = xt_region_new(1, 0);
  if (!region) return xt_region_refused(error);
  region->size = 0;
  return xt_batch_finish_storage(l, &l->reader, storage, region, error);
}

/* Returns the range of the storages from `first` on that are read together, and sets *next to the storage after them.
 */
static xt_need range_from(const xt_batch_load *l, size_t first, size_t *next) {
  size_t n = xt_batch_slab_length(l, first);
  const xt_record *record = xt_batch_record(l, first);
  *next = first + (n ? n : 1);
  return n > 1 ? (xt_need){record->header, xt_batch_record(l, *next - 1)->end - record->header, NULL}
               : record_need(l, record);
}

/* Storages that are not compressed are read in pieces if they are larger than SOURCE_WHOLE. The pieces are contiguous:
 * the first begins at the header of the record if the offset of its data is not known yet. */
static xt_need piece_of(const xt_batch_load *l, size_t i, xt_need range) {
  const xt_record *record = xt_batch_record(l, i);
  bool whole = record->method != XT_RECORD_STORED || record->size <= SOURCE_WHOLE;
  if (!whole && range.size > SOURCE_PIECE + SOURCE_SLACK) range.size = SOURCE_PIECE;
  return range;
}

static xt_need next_need(xt_batch_load *l) {
  xt_need range = {0, 0, NULL};
  size_t i = l->region ? l->next - 1 : l->next;
  l->need_next = l->next;
  if (i == l->count) return range;
  if (l->region) {
    range = record_need(l, xt_batch_record(l, i));
    range.offset += l->at;
    range.size -= l->at;
  } else {
    range = range_from(l, i, &l->need_next);
  }
  xt_need piece = piece_of(l, i, range);
  l->partial = piece.size < range.size;
  return piece;
}

/* Storages that are inside the pickle or empty need no bytes. */
static bool needs_bytes(const xt_record *record) {
  return record->header < XT_INLINE && (record->size || record->packed);
}

xt_status xt_batch_load_need(xt_batch_load *l, xt_need *need, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  for (; !l->region && l->next < l->count && status == XT_STATUS_ok; l->next++) {
    const xt_record *record = xt_batch_record(l, l->next);
    if (needs_bytes(record)) break;
    status = record->header >= XT_INLINE ? read_next(l, error) : make_empty(l, l->order[l->next], error);
  }
  l->failed = status != XT_STATUS_ok;
  *need = l->need = l->failed ? (xt_need){0, 0, NULL} : next_need(l);
  if (l->failed || need->size || l->next == l->count) return status;
  l->failed = true;
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)xt_batch_record(l, l->next)->header,
                     "a storage with data has no bytes in the file");
}

/* Lists the pieces of a range of storage `i`. Returns the new number of ranges. */
static size_t list_pieces(const xt_batch_load *l, size_t i, xt_need range, xt_need *ranges, size_t count, size_t max) {
  while (range.size && count < max) {
    ranges[count] = piece_of(l, i, range);
    range.offset += ranges[count].size;
    range.size -= ranges[count++].size;
  }
  return count;
}

size_t xt_batch_load_ahead(const xt_batch_load *l, xt_need *ranges, size_t max) {
  size_t current = l->region ? l->next - 1 : l->next, next = l->need_next, count = 0;
  if (!l->need.size) return 0;
  if (xt_batch_is_large(xt_batch_record(l, current))) {
    xt_need rest = record_need(l, xt_batch_record(l, current));
    uint64_t done = l->need.offset + l->need.size - rest.offset;
    if (done < rest.size)
      count = list_pieces(l, current, (xt_need){rest.offset + done, rest.size - done, NULL}, ranges, count, max);
    next = current + 1;
  }
  while (next < l->count && count < max) {
    size_t i = next++;
    if (needs_bytes(xt_batch_record(l, i))) count = list_pieces(l, i, range_from(l, i, &next), ranges, count, max);
  }
  return count;
}

/* Completes a piece of the current large storage, whose bytes are in the region, and the storage after its last piece.
 */
static xt_status finish_piece(xt_batch_load *l, const xt_record *record, size_t size, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  if (l->reader.verify) status = xt_record_reader_crc(&l->reader, l->region->data + l->at, size, &l->crc, error);
  l->at += size;
  l->done += size;
  if (status != XT_STATUS_ok || l->at < record->size) return status;
  if (l->reader.verify) status = xt_record_verify(record, l->crc, error);
  if (status != XT_STATUS_ok) return status;
  if (l->prefaults) xt_prefault_cancel(l->region);
  xt_region *region = l->region;
  l->region = NULL;
  return xt_batch_finish_storage(l, &l->reader, l->order[l->next - 1], region, error);
}

/* Copies what `bytes` has of the current large storage. */
static xt_status fill_piece(xt_batch_load *l, const xt_region *bytes, xt_error *error) {
  const xt_record *record = xt_batch_record(l, l->next - 1);
  uint64_t from = atomic_load(&record->data_offset) + l->at - l->need.offset, size = record->size - l->at;
  if (from >= bytes->size)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header, "a storage has no data");
  if (size > bytes->size - from) size = bytes->size - from;
  memcpy(l->region->data + l->at, bytes->data + from, size);
  return finish_piece(l, record, size, error);
}

/* Begins a large storage with its first piece. */
static xt_status begin_pieces(xt_batch_load *l, const xt_region *bytes, xt_error *error) {
  uint32_t storage = l->order[l->next++];
  xt_status status = xt_batch_allocate(l, &l->reader, storage, error);
  if (status != XT_STATUS_ok) return status;
  l->region = l->regions[storage];
  l->at = 0;
  l->crc = 0;
  if (l->prefaults) xt_prefault(l->region, 0, l->region->size);
  return fill_piece(l, bytes, error);
}

static xt_status fill(xt_batch_load *l, const xt_region *bytes, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  if (l->region) return fill_piece(l, bytes, error);
  if (l->partial) return begin_pieces(l, bytes, error);
  for (; l->next < l->need_next && status == XT_STATUS_ok; l->next++) status = read_next(l, error);
  return status;
}

xt_status xt_batch_load_fill(xt_batch_load *l, xt_region *bytes, xt_error *error) {
  if (l->failed) return xt_error_set(error, XT_STATUS_stale, "this load has already failed; start a new one");
  if (bytes->size != l->need.size)
    return xt_error_set(error, XT_STATUS_io, "the source returned %zu bytes, expected %zu", bytes->size, l->need.size);
  l->reader.memory = bytes;
  l->reader.memory_at = l->need.offset;
  l->reader.copies = bytes->size <= XT_BATCH_SLAB;
  xt_status status = fill(l, bytes, error);
  l->reader.memory = NULL;
  l->reader.memory_at = 0;
  l->failed = status != XT_STATUS_ok;
  return status;
}
