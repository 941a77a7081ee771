#include "loader.h"

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"

enum {
  SLAB = 2 << 20,  /* neighbours up to this are read together; one surviving tensor pins no more than that */
  PIECE = 4 << 20, /* of a large storage between two looks at the budget */
  CACHED = 256 << 10,
  HELPED = 32 << 20, /* less than this is not worth a thread */
  MANY_CORES = 4     /* with fewer, a second busy thread would leave the schedulers without a core */
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
  pthread_mutex_init(&l->lock, NULL);
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

static bool must_swap(const xt_loader *l) {
  return l->reader.checkpoint->big_endian != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

/* Each storage has one worker, so its place in `regions` needs no lock. */
static void finish(xt_loader *l, uint32_t storage, xt_region *region) {
  if (must_swap(l)) xt_reader_swap(region->data, region->size, l->reader.checkpoint->meaning.storages[storage].element);
  l->regions[storage] = region;
}

static void add_done(xt_loader *l, uint64_t bytes) {
  pthread_mutex_lock(&l->lock);
  l->done += bytes;
  pthread_mutex_unlock(&l->lock);
}

/* ---- Slabs ---- */

/* How many records from `first` on lie side by side and fit a slab together. */
static size_t slab_length(const xt_loader *l, size_t first) {
  size_t n = 0;
  uint64_t start = record_of(l, first)->header;
  for (size_t i = first; i < l->count; i++, n++) {
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
  if (!region) return xt_reader_refused(error);
  finish(l, storage, region);
  return status;
}

static xt_status read_slab(xt_loader *l, const xt_reader *reader, size_t first, size_t n, xt_error *error) {
  uint64_t start = record_of(l, first)->header, bytes = 0;
  size_t size = record_of(l, first + n - 1)->end - start;
  xt_region *slab = xt_region_new(size, start);
  if (!slab) return xt_reader_refused(error);
  xt_status status = xt_reader_fetch(reader, start, slab->data, size, error);
  for (size_t i = first; i < first + n && status == XT_STATUS_ok; i++) {
    status = take_from_slab(l, l->order[i], slab, start, error);
    bytes += record_of(l, i)->size;
  }
  xt_region_drop(slab);
  add_done(l, bytes);
  return status;
}

/* ---- One storage ---- */

static xt_status read_piece(xt_loader *l, const xt_reader *reader, xt_loader_worker *w, xt_error *error) {
  const xt_zip_entry *record = l->reader.checkpoint->records[w->storage];
  uint64_t data;
  xt_status status = xt_reader_place(reader, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  size_t size = record->size - w->at < PIECE ? record->size - w->at : PIECE;
  uint8_t *to = w->region->data + w->at;
  status = xt_reader_fetch(reader, data + w->at, to, size, error);
  for (size_t at = 0; reader->verify && status == XT_STATUS_ok && at < size; at += CACHED)
    w->crc = libdeflate_crc32(w->crc, to + at, size - at < CACHED ? size - at : CACHED);
  w->at += size;
  add_done(l, size);
  if (status != XT_STATUS_ok || w->at < record->size) return status;
  if (reader->verify) status = xt_checkpoint_verify(record, w->crc, error);
  if (status != XT_STATUS_ok) return status;
  finish(l, w->storage, w->region);
  w->region = NULL;
  return status;
}

/* A large stored record is begun; a deflated one is read at once. */
static xt_status begin_storage(xt_loader *l, const xt_reader *reader, xt_loader_worker *w, uint32_t storage,
                               xt_error *error) {
  const xt_zip_entry *record = l->reader.checkpoint->records[storage];
  uint64_t data;
  xt_region *region;
  if (record->method != XT_ZIP_STORED) {
    xt_status status = xt_reader_record(reader, record, &region, error);
    if (status == XT_STATUS_ok) finish(l, storage, region);
    add_done(l, record->size);
    return status;
  }
  xt_status status = xt_reader_place(reader, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  region = xt_region_new(record->size ? record->size : 1, data % 16 ? 0 : data);
  if (!region) return xt_reader_refused(error);
  *w = (xt_loader_worker){region, storage, 0, 0};
  return XT_STATUS_ok;
}

/* A storage of a file that is in memory: shared, when nothing has to be done to its bytes. */
static xt_status share(xt_loader *l, const xt_reader *reader, uint32_t storage, xt_error *error) {
  const xt_zip_entry *record = l->reader.checkpoint->records[storage];
  xt_region *memory = reader->memory, *region;
  uint64_t data;
  xt_status status = xt_reader_place(reader, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  if (data > memory->size || record->packed > memory->size - data)
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)data, "the data ends too early");
  bool as_it_is =
      record->method == XT_ZIP_STORED && !must_swap(l) && xt_reader_aligned(memory->data + data, XT_float64);
  if (as_it_is && reader->verify)
    status = xt_checkpoint_verify(record, libdeflate_crc32(0, memory->data + data, record->size), error);
  if (status != XT_STATUS_ok) return status;
  if (as_it_is) {
    region = xt_region_foreign(memory->data + data, record->size, memory, drop_slab);
    if (!region) return xt_reader_refused(error);
    xt_region_keep(memory);
  } else {
    status = xt_reader_record(reader, record, &region, error);
    if (status != XT_STATUS_ok) return status;
  }
  finish(l, storage, region);
  add_done(l, record->size);
  return status;
}

/* ---- Workers ---- */

/* The next records nobody has taken: *n of them, 0 when the step or the load is over. */
static size_t take_work(xt_loader *l, size_t *n) {
  pthread_mutex_lock(&l->lock);
  size_t first = l->next;
  *n = 0;
  if (!l->failed && first < l->count && l->done < l->stop_at) {
    *n = l->reader.memory ? 1 : slab_length(l, first);
    if (!*n) *n = 1;
    l->next += *n;
  }
  pthread_mutex_unlock(&l->lock);
  return first;
}

static bool step_over(xt_loader *l) {
  pthread_mutex_lock(&l->lock);
  bool over = l->failed || l->done >= l->stop_at;
  pthread_mutex_unlock(&l->lock);
  return over;
}

static xt_status work(xt_loader *l, const xt_reader *reader, xt_loader_worker *w, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  while (status == XT_STATUS_ok) {
    size_t n, first;
    if (w->region) {
      if (step_over(l)) return status;
      status = read_piece(l, reader, w, error);
      continue;
    }
    first = take_work(l, &n);
    if (!n) return status;
    const xt_zip_entry *record = record_of(l, first);
    if (reader->memory) status = share(l, reader, l->order[first], error);
    else if (n > 1 || (record->method == XT_ZIP_STORED && record->end - record->header <= SLAB))
      status = read_slab(l, reader, first, n, error);
    else status = begin_storage(l, reader, w, l->order[first], error);
  }
  pthread_mutex_lock(&l->lock);
  l->failed = true;
  pthread_mutex_unlock(&l->lock);
  return status;
}

typedef struct {
  xt_loader *loader;
  xt_reader reader;
  xt_status status;
  xt_error error;
  int64_t taken;
} helper;

static void *help(void *object) {
  helper *h = object;
  h->status = work(h->loader, &h->reader, &h->loader->workers[1], &h->error);
  h->taken = xt_memory_taken();
  return NULL;
}

xt_status xt_loader_step(xt_loader *l, uint64_t budget, bool *finished, xt_error *error) {
  helper h = {.loader = l, .reader = l->reader, .status = XT_STATUS_ok};
  pthread_t thread;
  *finished = false;
  if (l->failed) return xt_error_set(error, XT_STATUS_stale, "this load failed before; begin again");
  h.reader.stop = NULL; /* the caller's own thread watches the caller */
  l->stop_at = l->done + budget;
  bool worth = !l->reader.memory && l->total - l->done >= HELPED && sysconf(_SC_NPROCESSORS_ONLN) >= MANY_CORES;
  bool helped = worth && !pthread_create(&thread, NULL, help, &h);
  if (helped) atomic_fetch_add(&xt_memory_live.threads, 1);
  if (!helped && l->workers[1].region && !l->workers[0].region) { /* no helper now: its storage changes hands */
    l->workers[0] = l->workers[1];
    l->workers[1].region = NULL;
  }
  xt_status status = work(l, &l->reader, &l->workers[0], error);
  if (helped) {
    pthread_join(thread, NULL);
    atomic_fetch_sub(&xt_memory_live.threads, 1);
    xt_memory_add_taken(h.taken);
    if (status == XT_STATUS_ok && h.status != XT_STATUS_ok) {
      status = h.status;
      *error = h.error;
    }
  }
  *finished = l->next == l->count && !l->workers[0].region && !l->workers[1].region;
  return status;
}

void xt_loader_view(const xt_loader *l, const xt_node_tensor *t, xt_view *out) {
  xt_region *region = l->regions[t->storage];
  bool empty = false;
  for (uint32_t d = 0; d < t->ndim; d++) empty |= t->sizes[d] == 0;
  out->region = xt_region_keep(region);
  out->data = region->data + (empty ? 0 : (uint64_t)t->offset * xt_dtype_get(t->dtype)->size);
  memcpy(out->strides, t->strides, t->ndim * sizeof *t->strides);
}

void xt_loader_free(xt_loader *l) {
  for (size_t i = 0; l->regions && i < l->storages; i++) xt_region_drop(l->regions[i]);
  for (int i = 0; i < XT_LOADER_WORKERS; i++) xt_region_drop(l->workers[i].region);
  free(l->regions);
  free(l->order);
  memset(l, 0, sizeof *l);
}
