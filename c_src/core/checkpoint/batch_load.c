#include "core/checkpoint/batch_load.h"

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory/memory.h"
#include "core/os/cpu.h"

enum {
  SLAB = 2 << 20,  /* neighbours up to this are read together; one surviving tensor pins no more than that */
  PIECE = 4 << 20, /* of a large storage between two looks at the budget */
  CACHED = 256 << 10,
  AHEAD = 64 << 20,  /* of memory that is touched before it is read into */
  HELPED = 32 << 20, /* less than this is not worth a thread */
  ENOUGH_CORES = 2   /* for the reader and for the thread that touches */
};

static xt_record *record_of(const xt_batch_load *l, size_t i) { return l->reader.checkpoint->records[l->order[i]]; }

typedef struct {
  uint64_t at;
  uint32_t storage;
} placed;

static int by_place(const void *a, const void *b) {
  const placed *x = a, *y = b;
  return x->at < y->at ? -1 : x->at > y->at;
}

xt_status xt_batch_load_begin(xt_batch_load *l, const xt_record_reader *reader, const bool *wanted, xt_error *error) {
  const xt_checkpoint *c = reader->checkpoint;
  size_t storages = c->rebuild.storage_count;
  memset(l, 0, sizeof *l);
  l->reader = *reader;
  l->storages = storages;
  l->regions = calloc(storages + 1, sizeof *l->regions);
  l->order = calloc(storages + 1, sizeof *l->order);
  placed *places = calloc(storages + 1, sizeof *places);
  if (!l->regions || !l->order || !places) {
    free(places);
    return xt_error_set(error, XT_STATUS_no_memory, "no memory to plan the load");
  }
  for (uint32_t i = 0; i < storages; i++)
    if (wanted[i] && c->records[i]) {
      places[l->count++] = (placed){c->records[i]->header, i};
      l->total += c->records[i]->size;
    }
  qsort(places, l->count, sizeof *places, by_place);
  for (size_t i = 0; i < l->count; i++) l->order[i] = places[i].storage;
  free(places);
  l->helped = !reader->memory && l->total >= HELPED && xt_cpu_count() >= ENOUGH_CORES;
  return XT_STATUS_ok;
}

/* ---- Finishing a storage ---- */

static void drop_slab(xt_region *self) { xt_region_drop(self->owner); }

static void finish(xt_batch_load *l, uint32_t storage, xt_region *region) {
  if (xt_checkpoint_swaps(l->reader.checkpoint, storage))
    xt_record_reader_swap(region->data, region->size, l->reader.checkpoint->rebuild.storages[storage].element);
  l->regions[storage] = region;
}

/* ---- Slabs ---- */

/* How many records from `first` on lie side by side and fit a slab together. */
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

static xt_status take_from_slab(xt_batch_load *l, uint32_t storage, xt_region *slab, uint64_t slab_at,
                                xt_error *error) {
  xt_record *record = l->reader.checkpoint->records[storage];
  uint64_t data = atomic_load(&record->data_offset);
  xt_status status = XT_STATUS_ok;
  if (!data) status = xt_checkpoint_check_header(record, slab->data + (record->header - slab_at), &data, error);
  if (status != XT_STATUS_ok) return status;
  uint8_t *bytes = slab->data + (data - slab_at);
  if (l->reader.verify) status = xt_checkpoint_verify(record, libdeflate_crc32(0, bytes, record->size), error);
  if (status != XT_STATUS_ok) return status;
  xt_region *region;
  if (xt_record_reader_aligned(bytes, XT_float64)) { /* wide enough for all */
    region = xt_region_foreign(bytes, record->size, slab, drop_slab);
    if (region) xt_region_keep(slab);
  } else {
    region = xt_region_new(record->size ? record->size : 1, 0);
    if (region) memcpy(region->data, bytes, record->size);
  }
  if (!region) return xt_region_refused(error);
  finish(l, storage, region);
  return status;
}

static xt_status read_slab(xt_batch_load *l, size_t first, size_t n, xt_error *error) {
  uint64_t start = record_of(l, first)->header, bytes = 0;
  size_t size = record_of(l, first + n - 1)->end - start;
  xt_region *slab = xt_region_new(size, start);
  if (!slab) return xt_region_refused(error);
  xt_status status = xt_record_reader_fetch(&l->reader, start, slab->data, size, error);
  for (size_t i = first; i < first + n && status == XT_STATUS_ok; i++) {
    status = take_from_slab(l, l->order[i], slab, start, error);
    bytes += record_of(l, i)->size;
  }
  xt_region_drop(slab);
  l->done += bytes;
  return status;
}

/* ---- Large storages ---- */

/* Stored, and too large for a slab. */
static bool is_large(xt_record *record) {
  return record->method == XT_RECORD_STORED && record->end - record->header > SLAB;
}

static xt_status take_memory(xt_batch_load *l, uint32_t storage, xt_error *error) {
  xt_record *record = l->reader.checkpoint->records[storage];
  uint64_t data;
  xt_status status = xt_record_reader_data_offset(&l->reader, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  l->regions[storage] = xt_region_new(record->size, data % 16 ? 0 : data);
  return l->regions[storage] ? XT_STATUS_ok : xt_region_refused(error);
}

/* Takes memory for the large storages to come and has it touched. */
static xt_status prepare(xt_batch_load *l, xt_error *error) {
  if (l->prepared < l->next) l->prepared = l->next;
  for (; l->helped && l->prepared < l->count && l->ahead < AHEAD; l->prepared++) {
    if (!is_large(record_of(l, l->prepared))) continue;
    uint32_t storage = l->order[l->prepared];
    xt_status status = take_memory(l, storage, error);
    if (status != XT_STATUS_ok) return status;
    xt_prefault(l->regions[storage], 0, l->regions[storage]->size);
    l->ahead += l->regions[storage]->size;
  }
  return XT_STATUS_ok;
}

static xt_status begin_large(xt_batch_load *l, uint32_t storage, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  if (l->regions[storage]) l->ahead -= l->regions[storage]->size;
  else status = take_memory(l, storage, error);
  l->region = l->regions[storage];
  l->at = 0;
  l->crc = 0;
  return status == XT_STATUS_ok ? prepare(l, error) : status;
}

/* The storage in hand is the one before `next`. */
static xt_status read_piece(xt_batch_load *l, xt_error *error) {
  xt_record *record = record_of(l, l->next - 1);
  uint64_t data;
  xt_status status = xt_record_reader_data_offset(&l->reader, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  size_t size = record->size - l->at < PIECE ? record->size - l->at : PIECE;
  uint8_t *to = l->region->data + l->at;
  status = xt_record_reader_fetch(&l->reader, data + l->at, to, size, error);
  for (size_t at = 0; l->reader.verify && status == XT_STATUS_ok && at < size; at += CACHED)
    l->crc = libdeflate_crc32(l->crc, to + at, size - at < CACHED ? size - at : CACHED);
  l->at += size;
  l->done += size;
  if (status != XT_STATUS_ok || l->at < record->size) return status;
  if (l->reader.verify) status = xt_checkpoint_verify(record, l->crc, error);
  if (status != XT_STATUS_ok) return status;
  if (l->helped) xt_prefault_cancel(l->region);
  finish(l, l->order[l->next - 1], l->region);
  l->region = NULL;
  return status;
}

static xt_status read_deflated(xt_batch_load *l, uint32_t storage, xt_error *error) {
  xt_record *record = l->reader.checkpoint->records[storage];
  xt_region *region;
  xt_status status = xt_record_reader_whole(&l->reader, record, &region, error);
  if (status == XT_STATUS_ok) finish(l, storage, region);
  l->done += record->size;
  return status;
}

/* A storage of a file that is in memory: shared, when nothing has to be done to its bytes. */
static xt_status share(xt_batch_load *l, uint32_t storage, xt_error *error) {
  const xt_record_reader *reader = &l->reader;
  xt_record *record = reader->checkpoint->records[storage];
  xt_region *memory = reader->memory, *region;
  uint64_t data;
  xt_status status = xt_record_reader_data_offset(reader, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  bool inside = data >= XT_INLINE;
  if (!inside && (data > memory->size || record->packed > memory->size - data))
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)data, "the data ends too early");
  bool as_it_is = !inside && record->method == XT_RECORD_STORED && !xt_checkpoint_swaps(reader->checkpoint, storage) &&
                  xt_record_reader_aligned(memory->data + data, XT_float64);
  if (as_it_is && reader->verify)
    status = xt_checkpoint_verify(record, libdeflate_crc32(0, memory->data + data, record->size), error);
  if (status != XT_STATUS_ok) return status;
  if (as_it_is) {
    region = xt_region_foreign(memory->data + data, record->size, memory, drop_slab);
    if (!region) return xt_region_refused(error);
    xt_region_keep(memory);
  } else {
    status = xt_record_reader_whole(reader, record, &region, error);
    if (status != XT_STATUS_ok) return status;
  }
  finish(l, storage, region);
  l->done += record->size;
  return status;
}

/* ---- Steps ---- */

static xt_status read_next(xt_batch_load *l, xt_error *error) {
  if (l->region) return read_piece(l, error);
  size_t first = l->next;
  uint32_t storage = l->order[first];
  size_t n = l->reader.memory ? 0 : slab_length(l, first);
  l->next += n ? n : 1;
  if (l->reader.memory) return share(l, storage, error);
  if (n) return read_slab(l, first, n, error);
  return is_large(record_of(l, first)) ? begin_large(l, storage, error) : read_deflated(l, storage, error);
}

xt_status xt_batch_load_step(xt_batch_load *l, uint64_t budget, bool *finished, xt_error *error) {
  uint64_t stop_at = l->done + budget;
  xt_status status = XT_STATUS_ok;
  *finished = false;
  if (l->failed) return xt_error_set(error, XT_STATUS_stale, "this load failed before; begin again");
  while (status == XT_STATUS_ok && l->done < stop_at && (l->region || l->next < l->count)) status = read_next(l, error);
  l->failed = status != XT_STATUS_ok;
  *finished = !l->failed && l->next == l->count && !l->region;
  return status;
}

void xt_batch_load_free(xt_batch_load *l) {
  for (size_t i = 0; l->regions && i < l->storages; i++) {
    if (l->helped && l->regions[i]) xt_prefault_cancel(l->regions[i]);
    xt_region_drop(l->regions[i]);
  }
  free(l->regions);
  free(l->order);
  memset(l, 0, sizeof *l);
}
