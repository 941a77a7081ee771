#include "core/checkpoint/batch_load.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory/memory.h"
#include "core/os/cpu.h"

enum {
  SLAB = 2 << 20,          /* maximum size of a slab: small neighbors that are read and freed together */
  PIECE = 4 << 20,         /* bytes of a large storage between two checks of the budget */
  SOURCE_WHOLE = 32 << 20, /* a storage up to this size is one range that the caller reads, and used in place */
  SOURCE_PIECE = 8 << 20,  /* size of the ranges of a larger storage, whose bytes are copied */
  SOURCE_SLACK = 1 << 18,  /* a range may be larger by this, rather than leave a small rest */
  DATA_ALIGNMENT = 64,     /* of data in zip files; bytes that are read from such an offset on can be used in place */
  AHEAD = 64 << 20,        /* memory that is prefaulted before it is read into */
  MIN_PREFAULT = 32 << 20, /* smaller loads do not use the background thread */
  MIN_CPUS = 2             /* for the reader and the background thread */
};

static xt_record *record_of(const xt_batch_load *l, size_t i) { return l->reader.checkpoint->records[l->order[i]]; }

typedef struct {
  uint64_t at;
  uint32_t storage;
} placement;

static int compare_placements(const void *a, const void *b) {
  const placement *x = a, *y = b;
  return x->at < y->at ? -1 : x->at > y->at;
}

xt_status xt_batch_load_begin(xt_batch_load *l, const xt_record_reader *reader, const bool *wanted, xt_error *error) {
  const xt_checkpoint *c = reader->checkpoint;
  size_t storages = c->storages.count;
  memset(l, 0, sizeof *l);
  l->reader = *reader;
  l->storages = storages;
  l->regions = calloc(storages + 1, sizeof *l->regions);
  l->order = calloc(storages + 1, sizeof *l->order);
  placement *placements = calloc(storages + 1, sizeof *placements);
  if (!l->regions || !l->order || !placements) {
    free(placements);
    return xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading the checkpoint");
  }
  for (uint32_t i = 0; i < storages; i++)
    if (wanted[i] && c->records[i]) {
      placements[l->count++] = (placement){c->records[i]->header, i};
      l->total += c->records[i]->size;
    }
  qsort(placements, l->count, sizeof *placements, compare_placements);
  for (size_t i = 0; i < l->count; i++) l->order[i] = placements[i].storage;
  free(placements);
  l->prefaults = !reader->memory && l->total >= MIN_PREFAULT && xt_cpu_count() >= MIN_CPUS;
  return XT_STATUS_ok;
}

/* ---- Finishing a storage ---- */

static void drop_owner(xt_region *self) { xt_region_drop(self->owner); }

/* Whether the tensors of the storage can use it at this address. */
static bool is_aligned(const xt_batch_load *l, uint32_t storage, const uint8_t *data) {
  return (uintptr_t)data % l->reader.checkpoint->storages.list[storage].alignment == 0;
}

/* Takes over the region. */
static xt_status finish_storage(xt_batch_load *l, uint32_t storage, xt_region *region, xt_error *error) {
  l->regions[storage] = region;
  if (!xt_checkpoint_needs_swap(l->reader.checkpoint, storage)) return XT_STATUS_ok;
  xt_dtype element = l->reader.checkpoint->storages.list[storage].element;
  return xt_record_reader_swap(&l->reader, region->data, region->size, element, error);
}

static xt_status verify(const xt_batch_load *l, const xt_record *record, const uint8_t *data, xt_error *error) {
  uint32_t crc = 0;
  if (!l->reader.verify) return XT_STATUS_ok;
  xt_status status = xt_record_reader_crc(&l->reader, data, record->size, &crc, error);
  return status == XT_STATUS_ok ? xt_record_verify(record, crc, error) : status;
}

/* ---- Slabs ---- */

/* Returns the number of adjacent records from `first` on that fit into one slab. */
static size_t slab_length(const xt_batch_load *l, size_t first) {
  size_t n = 0;
  uint64_t start = record_of(l, first)->header;
  for (size_t i = first; i < l->count; i++, n++) {
    xt_record *record = record_of(l, i);
    if (record->method != XT_RECORD_STORED || record->end - start > SLAB ||
        (n && record_of(l, i - 1)->end != record->header))
      break;
  }
  return n;
}

static xt_status finish_from_slab(xt_batch_load *l, uint32_t storage, xt_region *slab, uint64_t slab_at,
                                  xt_error *error) {
  xt_record *record = l->reader.checkpoint->records[storage];
  uint64_t data;
  const uint8_t *header = slab->data + (record->header - slab_at);
  xt_status status = xt_checkpoint_locate(l->reader.checkpoint, record, header, &data, error);
  if (status != XT_STATUS_ok) return status;
  uint8_t *bytes = slab->data + (data - slab_at);
  status = verify(l, record, bytes, error);
  if (status != XT_STATUS_ok) return status;
  xt_region *region;
  if (is_aligned(l, storage, bytes)) {
    region = xt_region_foreign(bytes, record->size, slab, drop_owner);
    if (region) xt_region_keep(slab);
  } else {
    region = xt_region_new(record->size ? record->size : 1, 0);
    if (region) memcpy(region->data, bytes, record->size);
  }
  if (!region) return xt_region_refused(error);
  return finish_storage(l, storage, region, error);
}

static xt_status read_slab(xt_batch_load *l, size_t first, size_t n, xt_error *error) {
  uint64_t start = record_of(l, first)->header, bytes = 0;
  size_t size = record_of(l, first + n - 1)->end - start;
  xt_region *slab = xt_region_new(size, start);
  if (!slab) return xt_region_refused(error);
  xt_status status = xt_record_reader_fetch(&l->reader, start, slab->data, size, error);
  for (size_t i = first; i < first + n && status == XT_STATUS_ok; i++) {
    status = finish_from_slab(l, l->order[i], slab, start, error);
    bytes += record_of(l, i)->size;
  }
  xt_region_drop(slab);
  l->done += bytes;
  return status;
}

/* ---- Large storages ---- */

/* Returns true if the record is not compressed and too large for a slab. */
static bool is_large(xt_record *record) {
  return record->method == XT_RECORD_STORED && record->end - record->header > SLAB;
}

static xt_status allocate(xt_batch_load *l, uint32_t storage, xt_error *error) {
  xt_record *record = l->reader.checkpoint->records[storage];
  uint64_t data;
  xt_status status = xt_record_reader_data_offset(&l->reader, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  l->regions[storage] = xt_region_new(record->size, data % 16 ? 0 : data);
  return l->regions[storage] ? XT_STATUS_ok : xt_region_refused(error);
}

/* Allocates memory for the next large storages and submits it for prefaulting. */
static xt_status allocate_ahead(xt_batch_load *l, xt_error *error) {
  if (l->prepared < l->next) l->prepared = l->next;
  for (; l->prefaults && l->prepared < l->count && l->ahead < AHEAD; l->prepared++) {
    if (!is_large(record_of(l, l->prepared))) continue;
    uint32_t storage = l->order[l->prepared];
    xt_status status = allocate(l, storage, error);
    if (status != XT_STATUS_ok) return status;
    xt_prefault(l->regions[storage], 0, l->regions[storage]->size);
    l->ahead += l->regions[storage]->size;
  }
  return XT_STATUS_ok;
}

static xt_status begin_large(xt_batch_load *l, uint32_t storage, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  if (l->regions[storage]) l->ahead -= l->regions[storage]->size;
  else status = allocate(l, storage, error);
  l->region = l->regions[storage];
  l->at = 0;
  l->crc = 0;
  return status == XT_STATUS_ok ? allocate_ahead(l, error) : status;
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
  return finish_storage(l, l->order[l->next - 1], region, error);
}

/* Reads the next piece of the current large storage, which is the one before `next`. */
static xt_status read_piece(xt_batch_load *l, xt_error *error) {
  xt_record *record = record_of(l, l->next - 1);
  uint64_t data;
  xt_status status = xt_record_reader_data_offset(&l->reader, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  size_t size = record->size - l->at < PIECE ? record->size - l->at : PIECE;
  status = xt_record_reader_fetch(&l->reader, data + l->at, l->region->data + l->at, size, error);
  return status == XT_STATUS_ok ? finish_piece(l, record, size, error) : status;
}

static xt_status read_deflated(xt_batch_load *l, uint32_t storage, xt_error *error) {
  xt_record *record = l->reader.checkpoint->records[storage];
  xt_region *region;
  xt_status status = xt_record_reader_whole(&l->reader, record, &region, error);
  if (status == XT_STATUS_ok) status = finish_storage(l, storage, region, error);
  l->done += record->size;
  return status;
}

/* Reads a storage of a file that is in memory. Shares that memory if its bytes can be used as they are. */
static xt_status read_from_memory(xt_batch_load *l, uint32_t storage, xt_error *error) {
  const xt_record_reader *reader = &l->reader;
  xt_record *record = reader->checkpoint->records[storage];
  xt_region *memory = reader->memory, *region;
  uint64_t data;
  xt_status status = xt_record_reader_data_offset(reader, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  bool is_inline = data >= XT_INLINE;
  uint64_t from = data - reader->memory_at;
  if (!is_inline && (data < reader->memory_at || from > memory->size || record->packed > memory->size - from))
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)data,
                       "the file ends before the end of a storage, probably an incomplete download; download it again");
  bool can_share = !is_inline && !reader->copies && record->method == XT_RECORD_STORED &&
                   !xt_checkpoint_needs_swap(reader->checkpoint, storage) &&
                   is_aligned(l, storage, memory->data + from);
  if (can_share) status = verify(l, record, memory->data + from, error);
  if (status != XT_STATUS_ok) return status;
  if (can_share) {
    region = xt_region_foreign(memory->data + from, record->size, memory, drop_owner);
    if (!region) return xt_region_refused(error);
    xt_region_keep(memory);
  } else {
    status = xt_record_reader_whole(reader, record, &region, error);
    if (status != XT_STATUS_ok) return status;
  }
  l->done += record->size;
  return finish_storage(l, storage, region, error);
}

/* ---- Steps ---- */

static xt_status read_next(xt_batch_load *l, xt_error *error) {
  if (l->region) return read_piece(l, error);
  size_t first = l->next;
  uint32_t storage = l->order[first];
  size_t n = l->reader.memory ? 0 : slab_length(l, first);
  l->next += n ? n : 1;
  if (l->reader.memory) return read_from_memory(l, storage, error);
  if (n) return read_slab(l, first, n, error);
  return is_large(record_of(l, first)) ? begin_large(l, storage, error) : read_deflated(l, storage, error);
}

xt_status xt_batch_load_step(xt_batch_load *l, uint64_t budget, bool *finished, xt_error *error) {
  uint64_t stop_at = l->done + budget;
  xt_status status = XT_STATUS_ok;
  *finished = false;
  if (l->failed) return xt_error_set(error, XT_STATUS_stale, "this load has already failed; start a new one");
  while (status == XT_STATUS_ok && l->done < stop_at && (l->region || l->next < l->count)) status = read_next(l, error);
  l->failed = status != XT_STATUS_ok;
  *finished = !l->failed && l->next == l->count && !l->region;
  return status;
}

/* ---- Files that the caller reads ---- */

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
  return finish_storage(l, storage, region, error);
}

/* Returns the range of the storages from `first` on that are read together, and sets *next to the storage after them.
 */
static xt_need range_from(const xt_batch_load *l, size_t first, size_t *next) {
  size_t n = slab_length(l, first);
  const xt_record *record = record_of(l, first);
  *next = first + (n ? n : 1);
  return n > 1 ? (xt_need){record->header, record_of(l, *next - 1)->end - record->header, NULL}
               : record_need(l, record);
}

/* Storages that are not compressed are read in pieces if they are larger than SOURCE_WHOLE. The pieces are contiguous:
 * the first begins at the header of the record if the offset of its data is not known yet. */
static xt_need piece_of(const xt_batch_load *l, size_t i, xt_need range) {
  const xt_record *record = record_of(l, i);
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
    range = record_need(l, record_of(l, i));
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
    const xt_record *record = record_of(l, l->next);
    if (needs_bytes(record)) break;
    status = record->header >= XT_INLINE ? read_from_memory(l, l->order[l->next], error)
                                         : make_empty(l, l->order[l->next], error);
  }
  l->failed = status != XT_STATUS_ok;
  *need = l->need = l->failed ? (xt_need){0, 0, NULL} : next_need(l);
  if (l->failed || need->size || l->next == l->count) return status;
  l->failed = true;
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record_of(l, l->next)->header,
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
  if (is_large(record_of(l, current))) {
    xt_need rest = record_need(l, record_of(l, current));
    uint64_t done = l->need.offset + l->need.size - rest.offset;
    if (done < rest.size)
      count = list_pieces(l, current, (xt_need){rest.offset + done, rest.size - done, NULL}, ranges, count, max);
    next = current + 1;
  }
  while (next < l->count && count < max) {
    size_t i = next++;
    if (needs_bytes(record_of(l, i))) count = list_pieces(l, i, range_from(l, i, &next), ranges, count, max);
  }
  return count;
}

/* Copies what `bytes` has of the current large storage. */
static xt_status fill_piece(xt_batch_load *l, const xt_region *bytes, xt_error *error) {
  const xt_record *record = record_of(l, l->next - 1);
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
  xt_status status = allocate(l, storage, error);
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
  for (; l->next < l->need_next && status == XT_STATUS_ok; l->next++)
    status = read_from_memory(l, l->order[l->next], error);
  return status;
}

xt_status xt_batch_load_fill(xt_batch_load *l, xt_region *bytes, xt_error *error) {
  if (l->failed) return xt_error_set(error, XT_STATUS_stale, "this load has already failed; start a new one");
  if (bytes->size != l->need.size)
    return xt_error_set(error, XT_STATUS_io, "the source returned %zu bytes, expected %zu", bytes->size, l->need.size);
  l->reader.memory = bytes;
  l->reader.memory_at = l->need.offset;
  l->reader.copies = bytes->size <= SLAB;
  xt_status status = fill(l, bytes, error);
  l->reader.memory = NULL;
  l->reader.memory_at = 0;
  l->failed = status != XT_STATUS_ok;
  return status;
}

void xt_batch_load_free(xt_batch_load *l) {
  for (size_t i = 0; l->regions && i < l->storages; i++) {
    if (l->prefaults && l->regions[i]) xt_prefault_cancel(l->regions[i]);
    xt_region_drop(l->regions[i]);
  }
  free(l->regions);
  free(l->order);
  memset(l, 0, sizeof *l);
}
