#include "loader.h"

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

enum {
  SLAB = 2 << 20,  /* neighbours up to this are read together; one surviving tensor pins no more than that */
  PIECE = 4 << 20, /* of a large storage between two looks at the budget */
  CACHED = 256 << 10
};

static const xt_zip_entry *record_of(const xt_loader *l, size_t i) {
  return l->reader.checkpoint->records[l->order[i]];
}

typedef struct {
  uint64_t at;
  uint32_t storage;
} placed;

static int by_place(const void *a, const void *b) {
  const placed *x = a, *y = b;
  return x->at < y->at ? -1 : x->at > y->at;
}

xt_status xt_loader_begin(xt_loader *l, const xt_reader *reader, const bool *wanted, xt_error *error) {
  const xt_checkpoint *c = reader->checkpoint;
  size_t storages = c->meaning.storage_count;
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
  return XT_STATUS_ok;
}

/* ---- Finishing a storage ---- */

static void drop_slab(xt_region *self) { xt_region_drop(self->owner); }

static xt_status finish(xt_loader *l, uint32_t storage, xt_region *region) {
  const xt_checkpoint *c = l->reader.checkpoint;
  if (c->big_endian != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__))
    xt_reader_swap(region->data, region->size, c->meaning.storages[storage].element);
  l->regions[storage] = region;
  l->done += c->records[storage]->size;
  return XT_STATUS_ok;
}

/* ---- Slabs ---- */

/* How many records from the next on lie side by side and fit a slab together. */
static size_t slab_length(const xt_loader *l) {
  size_t n = 0;
  uint64_t start = record_of(l, l->next)->header;
  for (size_t i = l->next; i < l->count; i++, n++) {
    const xt_zip_entry *record = record_of(l, i);
    if (record->method != XT_ZIP_STORED || record->end - start > SLAB ||
        (n && record_of(l, i - 1)->end != record->header))
      break;
  }
  return n;
}

static xt_status take_from_slab(xt_loader *l, uint32_t storage, xt_region *slab, uint64_t slab_at, xt_error *error) {
  xt_checkpoint *c = l->reader.checkpoint;
  const xt_zip_entry *record = c->records[storage];
  uint64_t data;
  xt_status status = xt_checkpoint_check_place(c, record, slab->data + (record->header - slab_at), &data, error);
  if (status != XT_STATUS_ok) return status;
  uint8_t *bytes = slab->data + (data - slab_at);
  if (l->reader.verify) status = xt_checkpoint_verify(record, libdeflate_crc32(0, bytes, record->size), error);
  if (status != XT_STATUS_ok) return status;
  xt_region *region;
  if (xt_reader_aligned(bytes, XT_float64)) { /* wide enough for all */
    region = xt_region_foreign(bytes, record->size, slab, drop_slab);
    if (region) xt_region_keep(slab);
  } else {
    region = xt_region_new(record->size ? record->size : 1, 0);
    if (region) memcpy(region->data, bytes, record->size);
  }
  return region ? finish(l, storage, region) : xt_reader_refused(error);
}

static xt_status read_slab(xt_loader *l, size_t n, xt_error *error) {
  uint64_t start = record_of(l, l->next)->header;
  size_t size = record_of(l, l->next + n - 1)->end - start;
  xt_region *slab = xt_region_new(size, start);
  if (!slab) return xt_reader_refused(error);
  xt_status status = xt_reader_fetch(&l->reader, start, slab->data, size, error);
  for (size_t i = 0; i < n && status == XT_STATUS_ok; i++)
    status = take_from_slab(l, l->order[l->next + i], slab, start, error);
  xt_region_drop(slab);
  if (status == XT_STATUS_ok) l->next += n;
  return status;
}

/* ---- One storage ---- */

static xt_status read_piece(xt_loader *l, xt_error *error) {
  uint32_t storage = l->order[l->next];
  const xt_zip_entry *record = record_of(l, l->next);
  uint64_t data;
  xt_status status = xt_reader_place(&l->reader, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  if (!l->current) {
    bool aligned = data % 16 == 0;
    l->current = xt_region_new(record->size ? record->size : 1, aligned ? data : 0);
    if (!l->current) return xt_reader_refused(error);
    l->current_at = 0;
    l->crc = 0;
  }
  size_t size = record->size - l->current_at < PIECE ? record->size - l->current_at : PIECE;
  uint8_t *to = l->current->data + l->current_at;
  status = xt_reader_fetch(&l->reader, data + l->current_at, to, size, error);
  for (size_t at = 0; l->reader.verify && status == XT_STATUS_ok && at < size; at += CACHED)
    l->crc = libdeflate_crc32(l->crc, to + at, size - at < CACHED ? size - at : CACHED);
  l->current_at += size;
  if (status != XT_STATUS_ok || l->current_at < record->size) return status;
  if (l->reader.verify) status = xt_checkpoint_verify(record, l->crc, error);
  if (status != XT_STATUS_ok) return status;
  xt_region *region = l->current;
  l->current = NULL;
  l->next++;
  return finish(l, storage, region);
}

/* A storage of a file that is in memory: shared, when nothing has to be done to its bytes. */
static xt_status share(xt_loader *l, xt_error *error) {
  uint32_t storage = l->order[l->next];
  const xt_checkpoint *c = l->reader.checkpoint;
  const xt_zip_entry *record = record_of(l, l->next);
  xt_region *memory = l->reader.memory, *region;
  uint64_t data;
  xt_status status = xt_reader_place(&l->reader, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  bool swap = c->big_endian != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
  if (data > memory->size || record->packed > memory->size - data)
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)data, "the data ends too early");
  if (l->reader.verify && record->method == XT_ZIP_STORED) {
    status = xt_checkpoint_verify(record, libdeflate_crc32(0, memory->data + data, record->size), error);
    if (status != XT_STATUS_ok) return status;
  }
  if (record->method == XT_ZIP_STORED && !swap && xt_reader_aligned(memory->data + data, XT_float64)) {
    region = xt_region_foreign(memory->data + data, record->size, memory, drop_slab);
    if (region) xt_region_keep(memory);
    if (!region) return xt_reader_refused(error);
  } else {
    status = xt_reader_record(&l->reader, record, &region, error);
    if (status != XT_STATUS_ok) return status;
  }
  l->next++;
  return finish(l, storage, region);
}

xt_status xt_loader_step(xt_loader *l, uint64_t budget, bool *finished, xt_error *error) {
  uint64_t stop_at = l->done + l->current_at + budget;
  xt_status status = XT_STATUS_ok;
  while (status == XT_STATUS_ok && l->next < l->count && l->done + (l->current ? l->current_at : 0) < stop_at) {
    xt_region *inflated;
    size_t n = l->current || l->reader.memory ? 0 : slab_length(l);
    if (l->reader.memory) {
      status = share(l, error);
    } else if (n) {
      status = read_slab(l, n, error);
    } else if (record_of(l, l->next)->method == XT_ZIP_STORED) {
      status = read_piece(l, error);
    } else {
      status = xt_reader_record(&l->reader, record_of(l, l->next), &inflated, error);
      if (status == XT_STATUS_ok) status = finish(l, l->order[l->next++], inflated);
    }
  }
  *finished = l->next == l->count;
  return status;
}

void xt_loader_view(const xt_loader *l, const xt_node_tensor *t, xt_view *out) {
  xt_region *region = l->regions[t->storage];
  out->region = xt_region_keep(region);
  bool empty = false;
  for (uint32_t d = 0; d < t->ndim; d++) empty |= t->sizes[d] == 0;
  out->data = region->data + (empty ? 0 : (uint64_t)t->offset * xt_dtype_get(t->dtype)->size);
  memcpy(out->strides, t->strides, t->ndim * sizeof *t->strides);
}

void xt_loader_free(xt_loader *l) {
  if (l->regions)
    for (size_t i = 0; i < l->storages; i++) xt_region_drop(l->regions[i]);
  xt_region_drop(l->current);
  free(l->regions);
  free(l->order);
  memset(l, 0, sizeof *l);
}
