#include "core/checkpoint/batch_load.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/sort.h"
#include "core/checkpoint/batch_parts.h"
#include "core/checkpoint/crc.h"
#include "core/checkpoint/readers.h"
#include "core/memory/memory.h"
#include "core/os/cpu.h"
#include "core/os/pages.h"

enum {
  AHEAD = 64 << 20,        /* memory that is prefaulted before it is read into */
  MIN_PREFAULT = 32 << 20, /* smaller loads do not use the background thread */
  MIN_CPUS = 2,            /* for the reader and the background thread */
  PAGE = 4096,
  MAX_VIEWS = 64, /* regions that are freed together */
  MAX_GAP = 64    /* bytes between two records of a slab, such as the size of a storage in a legacy file */
};

xt_record *xt_batch_record(const xt_batch_load *l, size_t i) { return l->reader.checkpoint->records[l->order[i]]; }

/* Sorts the storages by file offset. In most files they are already sorted. Returns false without memory. */
static bool sort_by_place(xt_batch_load *l) {
  bool in_order = true;
  for (size_t i = 1; i < l->count && in_order; i++)
    in_order = xt_batch_record(l, i - 1)->header <= xt_batch_record(l, i)->header;
  if (in_order) return true;
  xt_sort_item *items = xt_arena_alloc(&l->arena, 2 * l->count, sizeof *items);
  if (!items) return false;
  for (size_t i = 0; i < l->count; i++) items[i] = (xt_sort_item){xt_batch_record(l, i)->header, l->order[i]};
  xt_sort_items(items, items + l->count, l->count);
  for (size_t i = 0; i < l->count; i++) l->order[i] = (uint32_t)items[i].index;
  return true;
}

xt_status xt_batch_load_begin(xt_batch_load *l, const xt_record_reader *reader, const bool *wanted, xt_error *error) {
  const xt_checkpoint *c = reader->checkpoint;
  size_t storages = c->storages.count;
  memset(l, 0, sizeof *l);
  l->reader = *reader;
  l->storages = storages;
  l->arena.expected = storages * (sizeof *l->regions + sizeof *l->order + (reader->verify ? sizeof *l->sums : 0));
  l->regions = xt_arena_alloc(&l->arena, storages + 1, sizeof *l->regions);
  l->order = xt_arena_alloc(&l->arena, storages + 1, sizeof *l->order);
  if (reader->verify) l->sums = xt_arena_alloc(&l->arena, storages + 1, sizeof *l->sums);
  bool allocated = l->regions && l->order && (!reader->verify || l->sums);
  for (uint32_t i = 0; allocated && i < storages; i++)
    if (wanted[i] && c->records[i]) {
      l->order[l->count++] = i;
      l->total += c->records[i]->size;
    }
  if (!allocated || !sort_by_place(l))
    return xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading the checkpoint");
  l->prefaults = !reader->memory && l->total >= MIN_PREFAULT && xt_cpu_count() >= MIN_CPUS;
  return XT_STATUS_ok;
}

/* ---- Finishing a storage ---- */

/* Whether the tensors of the storage can use it at this address. */
static bool is_aligned(const xt_batch_load *l, uint32_t storage, const uint8_t *data) {
  return (uintptr_t)data % l->reader.checkpoint->storages.list[storage].alignment == 0;
}

xt_status xt_batch_finish_storage(xt_batch_load *l, const xt_record_reader *r, uint32_t storage, xt_region *region,
                                  xt_error *error) {
  l->regions[storage] = region;
  if (!xt_checkpoint_needs_swap(r->checkpoint, storage)) return XT_STATUS_ok;
  return xt_record_reader_swap(r, region->data, region->size, r->checkpoint->storages.list[storage].element, error);
}

static xt_status verify(const xt_record_reader *r, const xt_record *record, const uint8_t *data, xt_error *error) {
  uint32_t crc = 0;
  if (!r->verify) return XT_STATUS_ok;
  xt_status status = xt_record_reader_crc(r, data, record->size, &crc, error);
  return status == XT_STATUS_ok ? xt_record_verify(record, crc, error) : status;
}

/* ---- Slabs ---- */

/* The regions of the storages are in the same memory, which is one huge page if the slab is full. */
size_t xt_batch_slab_length(const xt_batch_load *l, size_t first) {
  enum { ROOM = XT_BATCH_SLAB - PAGE };
  size_t n = 0;
  uint64_t start = xt_batch_record(l, first)->header;
  for (size_t i = first; i < l->count; i++, n++) {
    xt_record *record = xt_batch_record(l, i);
    uint64_t before = n ? xt_batch_record(l, i - 1)->end : start, gap = record->header < XT_INLINE ? MAX_GAP : 0;
    if (record->method != XT_RECORD_STORED || record->end - start > XT_BATCH_SLAB || record->header < before ||
        record->header - before > gap || (n && record->end - start + (n + 1) * sizeof(xt_region) > ROOM))
      break;
  }
  return n;
}

/* Returns where the bytes of a record can be used. If they are not aligned, they are moved over what precedes them,
 * such as the size in front of a storage of a legacy file. Returns NULL if there is not enough of that. */
static uint8_t *align(const xt_batch_load *l, uint32_t storage, uint8_t *bytes, size_t size, uint64_t room) {
  size_t shift = (uintptr_t)bytes % l->reader.checkpoint->storages.list[storage].alignment;
  if (!shift) return bytes;
  return shift <= room ? memmove(bytes - shift, bytes, size) : NULL;
}

static xt_status finish_from_slab(xt_batch_load *l, const xt_record_reader *r, size_t i, size_t first, xt_region *slab,
                                  xt_error *error) {
  uint32_t storage = l->order[i];
  xt_record *record = xt_batch_record(l, i);
  uint64_t at, slab_at = xt_batch_record(l, first)->header;
  const uint8_t *header = slab->data + (record->header - slab_at);
  xt_status status = xt_checkpoint_locate(r->checkpoint, record, header, &at, error);
  if (status != XT_STATUS_ok) return status;
  uint8_t *bytes = slab->data + (at - slab_at);
  status = verify(r, record, bytes, error);
  if (status != XT_STATUS_ok) return status;
  uint64_t before = i > first ? xt_batch_record(l, i - 1)->end : slab_at;
  uint8_t *aligned = align(l, storage, bytes, record->size, at - before);
  xt_region *region = aligned ? xt_region_part(slab, i - first, aligned, record->size)
                              : xt_region_new(record->size ? record->size : 1, 0);
  if (!region) return xt_region_refused(error);
  if (!aligned) memcpy(region->data, bytes, record->size);
  return xt_batch_finish_storage(l, r, storage, region, error);
}

static xt_status read_slab(xt_batch_load *l, const xt_record_reader *r, size_t first, size_t n, xt_error *error) {
  uint64_t start = xt_batch_record(l, first)->header;
  size_t size = xt_batch_record(l, first + n - 1)->end - start;
  xt_region *slab = xt_region_new_slab(size, start, n);
  if (!slab) return xt_region_refused(error);
  xt_status status = xt_record_reader_fetch(r, start, slab->data, size, error);
  for (size_t i = first; i < first + n && status == XT_STATUS_ok; i++)
    status = finish_from_slab(l, r, i, first, slab, error);
  xt_region_drop(slab);
  return status;
}

/* ---- Large storages ---- */

bool xt_batch_is_large(const xt_record *record) {
  return record->method == XT_RECORD_STORED && record->end - record->header > XT_BATCH_SLAB;
}

xt_status xt_batch_allocate(xt_batch_load *l, const xt_record_reader *r, uint32_t storage, xt_error *error) {
  xt_record *record = r->checkpoint->records[storage];
  uint64_t data;
  xt_status status = xt_record_reader_data_offset(r, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  l->regions[storage] = xt_region_new(record->size, data % 16 ? 0 : data);
  return l->regions[storage] ? XT_STATUS_ok : xt_region_refused(error);
}

/* Allocates memory for the next large storages and submits it for prefaulting. */
static xt_status allocate_ahead(xt_batch_load *l, const xt_record_reader *r, xt_error *error) {
  if (l->prepared < l->next) l->prepared = l->next;
  for (; l->prefaults && l->prepared < l->count && l->ahead < AHEAD; l->prepared++) {
    if (!xt_batch_is_large(xt_batch_record(l, l->prepared))) continue;
    uint32_t storage = l->order[l->prepared];
    xt_status status = xt_batch_allocate(l, r, storage, error);
    if (status != XT_STATUS_ok) return status;
    xt_prefault(l->regions[storage], 0, l->regions[storage]->size);
    l->ahead += l->regions[storage]->size;
  }
  return XT_STATUS_ok;
}

static xt_status begin_large(xt_batch_load *l, const xt_record_reader *r, size_t i, xt_error *error) {
  uint32_t storage = l->order[i];
  xt_status status = XT_STATUS_ok;
  if (l->regions[storage]) l->ahead -= l->regions[storage]->size;
  else status = xt_batch_allocate(l, r, storage, error);
  if (status != XT_STATUS_ok) return status;
  l->region = l->regions[storage];
  l->at = 0;
  if (l->sums) atomic_init(&l->sums[i].left, xt_batch_record(l, i)->size);
  return allocate_ahead(l, r, error);
}

/* Adds the CRC of a piece to that of its storage, and checks it after the last piece. */
static xt_status add_sum(xt_batch_load *l, const xt_read_job *job, uint32_t crc, xt_error *error) {
  const xt_record *record = xt_batch_record(l, job->item);
  xt_batch_sum *sum = &l->sums[job->item];
  atomic_fetch_xor(&sum->crc, xt_crc_shift(crc, record->size - job->at - job->size));
  if (atomic_fetch_sub(&sum->left, job->size) != job->size) return XT_STATUS_ok;
  return xt_record_verify(record, atomic_load(&sum->crc), error);
}

/* The end of a large storage that does not fill a huge page has small ones. */
static void populate_end(uint8_t *to, size_t size) {
  enum { HUGE_PAGE = 2 << 20, MIN_SIZE = 64 << 10 };
  size_t rest = (uintptr_t)(to + size) % HUGE_PAGE;
  if (rest > size) rest = size;
  if (rest >= MIN_SIZE) xt_pages_populate(to + size - rest, rest);
}

/* Reads a piece of a large storage. It has whole elements. */
static xt_status read_piece(xt_batch_load *l, const xt_record_reader *r, const xt_read_job *job, xt_error *error) {
  uint32_t storage = l->order[job->item], crc = 0;
  xt_record *record = xt_batch_record(l, job->item);
  xt_region *region = l->regions[storage];
  uint8_t *to = region->data + job->at;
  uint64_t data;
  xt_status status = xt_record_reader_data_offset(r, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  if (job->at + job->size == record->size && !l->prefaults) populate_end(to, job->size);
  if (data >= XT_INLINE) status = xt_record_reader_fetch(r, data + job->at, to, job->size, error);
  else status = xt_readers_read(r, data + job->at, to, job->size, r->verify ? &crc : NULL, error);
  if (status == XT_STATUS_ok && r->verify && data < XT_INLINE) status = add_sum(l, job, crc, error);
  if (status == XT_STATUS_ok && xt_checkpoint_needs_swap(r->checkpoint, storage))
    status = xt_record_reader_swap(r, to, job->size, r->checkpoint->storages.list[storage].element, error);
  if (l->prefaults && job->at + job->size == record->size) xt_prefault_cancel(region);
  return status;
}

/* ---- Other storages ---- */

static xt_status read_deflated(xt_batch_load *l, const xt_record_reader *r, uint32_t storage, xt_error *error) {
  xt_region *region;
  xt_status status = xt_record_reader_whole(r, r->checkpoint->records[storage], &region, error);
  return status == XT_STATUS_ok ? xt_batch_finish_storage(l, r, storage, region, error) : status;
}

/* `views` has a part with this number for the storage, if its memory can be shared. */
static xt_status read_memory(xt_batch_load *l, const xt_record_reader *reader, uint32_t storage, xt_region *views,
                             size_t number, xt_error *error) {
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
  if (can_share) status = verify(reader, record, memory->data + from, error);
  if (status != XT_STATUS_ok) return status;
  if (can_share) region = xt_region_part(views, number, memory->data + from, record->size);
  else status = xt_record_reader_whole(reader, record, &region, error);
  return status == XT_STATUS_ok ? xt_batch_finish_storage(l, reader, storage, region, error) : status;
}

xt_status xt_batch_read_memory(xt_batch_load *l, const xt_record_reader *reader, size_t first, size_t count,
                               xt_error *error) {
  /* without memory, the storages are inside a pickle, and are copied */
  xt_region *views = reader->memory ? xt_region_new_views(reader->memory, count) : NULL;
  if (reader->memory && !views) return xt_region_refused(error);
  xt_status status = XT_STATUS_ok;
  for (size_t i = 0; i < count && status == XT_STATUS_ok; i++)
    status = read_memory(l, reader, l->order[first + i], views, i, error);
  xt_region_drop(views);
  return status;
}

/* ---- Steps ---- */

/* Returns the number of storages of a file in memory, from `first` on, that are read together: several if only their
 * regions have to be made. */
static size_t count_in_memory(const xt_batch_load *l, size_t first) {
  size_t n = 1;
  uint64_t done = l->done + xt_batch_record(l, first)->size;
  if (l->reader.verify || l->reader.copies) return 1;
  for (; n < MAX_VIEWS && first + n < l->count && done < l->step_end; n++) done += xt_batch_record(l, first + n)->size;
  return n;
}

/* A job is a piece of a large storage, or `count` storages from `item` on that are read together. */
static bool take(void *context, const xt_record_reader *r, xt_read_job *job, xt_status *status, xt_error *error) {
  xt_batch_load *l = context;
  if (l->done >= l->step_end || (!l->region && l->next == l->count)) return false;
  *job = (xt_read_job){.item = l->region ? l->next - 1 : l->next};
  if (!l->region) {
    size_t slab = l->reader.memory ? count_in_memory(l, l->next) : xt_batch_slab_length(l, l->next);
    bool is_large = !l->reader.memory && xt_batch_is_large(xt_batch_record(l, l->next));
    job->count = is_large ? 0 : slab ? slab : 1;
    l->next += is_large ? 1 : job->count;
    for (size_t i = job->item; i < job->item + job->count; i++) l->done += xt_batch_record(l, i)->size;
    if (is_large) *status = begin_large(l, r, job->item, error);
    if (!is_large || *status != XT_STATUS_ok) return *status == XT_STATUS_ok;
  }
  uint64_t left = xt_batch_record(l, job->item)->size - l->at;
  job->at = l->at;
  job->size = xt_readers_piece(l->region->data + l->at, left);
  l->at += job->size;
  l->done += job->size;
  if (job->size == left) l->region = NULL;
  return true;
}

static xt_status run(void *context, const xt_record_reader *r, const xt_read_job *job, xt_error *error) {
  xt_batch_load *l = context;
  const xt_record *record = xt_batch_record(l, job->item);
  if (r->memory) return xt_batch_read_memory(l, r, job->item, job->count, error);
  if (!job->count) return read_piece(l, r, job, error);
  if (record->method != XT_RECORD_STORED) return read_deflated(l, r, l->order[job->item], error);
  return read_slab(l, r, job->item, job->count, error);
}

/* Chooses the number of readers, before the first step. */
static void choose_readers(xt_batch_load *l) {
  uint64_t from = l->count ? xt_batch_record(l, 0)->header : 0;
  uint64_t to = l->count ? xt_batch_record(l, l->count - 1)->end : 0;
  xt_readers_plan(&l->reader, from, to, l->total, &l->readers);
  if (l->readers > 1) l->prefaults = false; /* each reader touches the pages that it fills */
}

xt_status xt_batch_load_step(xt_batch_load *l, uint64_t budget, bool *finished, xt_error *error) {
  *finished = false;
  if (l->failed) return xt_error_set(error, XT_STATUS_stale, "this load has already failed; start a new one");
  if (!l->readers) choose_readers(l);
  l->step_end = l->done + budget;
  xt_status status = xt_readers_run(&l->reader, l->readers, &(xt_read_work){take, run, l}, error);
  l->failed = status != XT_STATUS_ok;
  *finished = !l->failed && l->next == l->count && !l->region;
  return status;
}

void xt_batch_load_free(xt_batch_load *l) {
  for (size_t i = 0; l->regions && i < l->storages; i++) {
    if (l->prefaults && l->regions[i]) xt_prefault_cancel(l->regions[i]);
    xt_region_drop(l->regions[i]);
  }
  xt_arena_free(&l->arena);
  memset(l, 0, sizeof *l);
}
