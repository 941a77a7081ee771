#include "core/checkpoint/readers.h"

#include <libdeflate.h>

#include "core/checkpoint/crc.h"
#include "core/memory/memory.h"
#include "core/memory/parallel.h"
#include "core/os/cpu.h"
#include "core/os/mapping.h"
#include "core/os/pages.h"
#include "core/os/thread.h"
#include "core/os/yield.h"

enum {
  HUGE_PAGE = 2 << 20,
  PER_READER = 8 << 20,      /* bytes of a cached file for which another reader pays */
  PER_COLD_READER = 1 << 20, /* the same of a file on disk */
  MAX_CACHED = 8,            /* readers of a cached file; more do not copy faster */
  COLD = 8,                  /* readers of a file on disk */
  MAX_RUN = 8,               /* pieces that one of them takes at a time */
  PROBES = 16,               /* places where a file is asked whether it is cached */
  SMALLEST = 64 << 10,       /* reads from this size on, one after another, are read ahead of */
  MAX_GAP = 1 << 20,         /* between two such reads */
  AHEAD = 8 << 20,
  STOP_INTERVAL = 512 << 10, /* bytes */
  MIN_LARGE = 16 << 20       /* smaller reads leave what they have read in the cache */
};

/* ---- The number of readers ---- */

static bool is_cold(const xt_record_reader *r, uint64_t from, uint64_t to) {
  for (uint64_t i = 0; i < PROBES; i++)
    if (xt_file_waits(r->file, from + (to - from) / PROBES * i)) return true;
  return false;
}

/* Readers of other loads count: together they leave a CPU to others, if there are more than two. */
static unsigned cached_readers(unsigned cpus) {
  unsigned most = cpus > 2 ? cpus - 1 : cpus, busy = xt_parallel_helpers();
  if (most > MAX_CACHED) most = MAX_CACHED;
  return most > busy ? most - busy : 1;
}

static unsigned count_readers(const xt_record_reader *r, uint64_t from, uint64_t to, uint64_t bytes, bool *cold) {
  bool in_memory = r->memory || r->pieces;
  *cold = false;
  if (r->readers == 1 || bytes < 2 * PER_COLD_READER || (in_memory && !r->verify && !r->copies)) return 1;
  if (!in_memory) *cold = is_cold(r, from, to);
  uint64_t most = r->readers ? r->readers : *cold ? COLD : cached_readers(r->cpus);
  uint64_t useful = bytes / (*cold ? PER_COLD_READER : PER_READER);
  if (useful < most) most = useful;
  return most ? (unsigned)most : 1;
}

/* Whether a read would take more than half of the memory that there may be. */
static bool is_large(const xt_record_reader *r, uint64_t bytes) {
  if (bytes < MIN_LARGE) return false;
  uint64_t memory = xt_cpu_memory(), budget = (uint64_t)xt_memory_budget();
  return bytes > (memory < budget ? memory : budget) / 2 / (r->files ? r->files : 1);
}

void xt_readers_plan(xt_record_reader *r, uint64_t from, uint64_t to, uint64_t bytes, unsigned *count) {
  *count = count_readers(r, from, to, bytes, &r->cold);
  uint64_t run = r->cold ? bytes / *count / XT_READ_PIECE : 1;
  r->run = run < 1 ? 1 : run < MAX_RUN ? (unsigned)run : MAX_RUN;
  r->drops = r->drop == XT_DROP_ALWAYS || (r->drop == XT_DROP_IF_LARGE && is_large(r, bytes));
}

/* ---- The readers ---- */

/* Pieces are numbered from 1 on. */
typedef struct {
  const xt_record_reader *reader;
  const xt_read_work *work;
  xt_mutex lock;
  uint64_t taken;               /* pieces that were taken */
  atomic_uint_least64_t failed; /* the number of the first piece that failed, or UINT64_MAX */
  xt_status status;
  xt_error *error; /* of that piece */
} readers;

typedef struct {
  readers *all;
  bool is_helper;
  uint64_t number; /* of its piece */
} thread;

/* Only the thread of the caller can ask whether the caller wants to stop. */
static bool is_stopped(void *context) {
  const thread *t = context;
  const xt_record_reader *r = t->all->reader;
  return atomic_load(&t->all->failed) < t->number || (!t->is_helper && r->stop && r->stop(r->context));
}

static void fail(const thread *t, xt_status status, const xt_error *error) {
  readers *all = t->all;
  xt_mutex_lock(&all->lock);
  if (t->number < atomic_load(&all->failed)) {
    /* if the caller stops, all do */
    atomic_store(&all->failed, status == XT_STATUS_stopping ? 0 : t->number);
    all->status = status;
    *all->error = *error;
  }
  xt_mutex_unlock(&all->lock);
}

/* Takes the next pieces. Returns how many. If one could not be taken, those before it still have to be read. */
static unsigned take(thread *t, const xt_record_reader *reader, xt_read_job jobs[]) {
  readers *all = t->all;
  const xt_read_work *work = all->work;
  xt_status status = XT_STATUS_ok;
  xt_error error;
  unsigned count = 0, most = reader->run ? reader->run : 1;
  xt_mutex_lock(&all->lock);
  uint64_t first = all->taken + 1;
  while (count < most && atomic_load(&all->failed) > first + count &&
         work->take(work->context, reader, &jobs[count], &status, &error))
    count++;
  all->taken += count;
  xt_mutex_unlock(&all->lock);
  t->number = first + count;
  if (status != XT_STATUS_ok) fail(t, status, &error);
  t->number = first;
  return count;
}

static void read_pieces(void *context, bool is_helper) {
  readers *all = context;
  thread t = {all, is_helper, 0};
  xt_record_reader reader = *all->reader;
  xt_file own = {.fd = -1};
  xt_read_job jobs[MAX_RUN];
  unsigned count;
  xt_error error;
  reader.is_part = true;
  reader.stop = is_stopped;
  reader.context = &t;
  if (is_helper && reader.run > 1 && xt_file_reopen(reader.file, &own)) reader.file = &own;
  while ((count = take(&t, &reader, jobs)))
    for (unsigned i = 0; i < count; i++, t.number++) {
      xt_status status = all->work->run(all->work->context, &reader, &jobs[i], &error);
      if (status != XT_STATUS_ok) fail(&t, status, &error);
    }
  xt_file_close(&own);
}

xt_status xt_readers_run(const xt_record_reader *reader, unsigned count, const xt_read_work *work, xt_error *error) {
  xt_record_reader planned = *reader;
  xt_file uncached = {.fd = -1};
  readers all = {.reader = &planned, .work = work, .status = XT_STATUS_ok, .error = error};
  if (planned.cold && planned.drops && xt_file_reopen_uncached(planned.file, &uncached)) planned.uncached = &uncached;
  atomic_init(&all.failed, UINT64_MAX);
  xt_mutex_init(&all.lock);
  xt_parallel_run(count, read_pieces, &all);
  xt_mutex_destroy(&all.lock);
  xt_file_close(&uncached);
  return all.status;
}

/* ---- Pieces ---- */

size_t xt_readers_piece(const uint8_t *to, uint64_t left) {
  uint64_t size = XT_READ_PIECE - (uintptr_t)to % HUGE_PAGE;
  return left < size ? left : size;
}

static size_t until_stop(uint64_t at, uint64_t left) {
  uint64_t size = STOP_INTERVAL - at % STOP_INTERVAL;
  return left < size ? left : size;
}

/* Between two steps, others can have the CPU of a reader. A step ends where the reader asks whether to stop. */
static size_t next_step(uint64_t at, uint64_t size) { return xt_yield(until_stop(at, size - at)); }

static xt_status check_stop(const xt_record_reader *r, uint64_t at, xt_error *error) {
  return at % STOP_INTERVAL ? XT_STATUS_ok : xt_record_reader_check_stop(r, error);
}

/* Reads past the page cache, as far as that is possible, and sets *at to the number of bytes. It does not yield: while
 * it waits for the disk, others have the CPU. */
static xt_status read_uncached(const xt_record_reader *r, uint64_t offset, uint8_t *to, size_t size, uint32_t *crc,
                               size_t *at, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  for (size_t step; *at < size && status == XT_STATUS_ok; *at += step) {
    step = until_stop(offset + *at, size - *at);
    status = xt_record_reader_check_stop(r, error);
    if (status != XT_STATUS_ok || !xt_file_read_uncached(r->uncached, offset + *at, to + *at, step)) break;
    if (crc) *crc = libdeflate_crc32(*crc, to + *at, step);
  }
  return status;
}

xt_status xt_readers_read(const xt_record_reader *r, uint64_t offset, uint8_t *to, size_t size, uint32_t *crc,
                          xt_error *error) {
  if (r->uncached) {
    size_t done = 0;
    xt_status status = read_uncached(r, offset, to, size, crc, &done, error);
    if (status != XT_STATUS_ok || done == size) return status;
    offset += done, to += done, size -= done;
  }
  if (r->cold && r->run <= 1) xt_file_prefetch(r->file, offset, size); /* in long runs, the system reads ahead */
  for (size_t at = 0, chunk; at < size; at += chunk) {
    chunk = next_step(at, size);
    xt_status status = check_stop(r, at, error);
    if (status == XT_STATUS_ok) status = xt_file_read(r->file, offset + at, to + at, chunk, error);
    if (status != XT_STATUS_ok) return status;
    if (crc) *crc = libdeflate_crc32(*crc, to + at, chunk);
  }
  if (r->drops) xt_file_uncache(r->file, offset, size);
  return XT_STATUS_ok;
}

/* Small reads one after another, as of a stream of tensors, would leave the disk idle between them. What comes next is
 * requested when less than half of AHEAD is left of what was. */
static void read_ahead(const xt_record_reader *r, uint64_t offset, uint64_t size) {
  xt_checkpoint *c = r->checkpoint;
  uint64_t end = offset + size, last = atomic_exchange(&c->read_to, end), next = end + AHEAD / 2;
  if (offset < last || offset - last > MAX_GAP || next >= r->file->size || atomic_load(&c->requested) >= next) return;
  atomic_store(&c->requested, end + AHEAD);
  if (xt_file_waits(r->file, next)) xt_file_prefetch(r->file, end, AHEAD);
}

/* ---- One range ---- */

typedef struct {
  uint64_t offset;
  uint8_t *to;
  uint64_t size, next; /* next: bytes that were taken */
  bool sums;
  atomic_uint_least32_t crc;
} range;

static bool take_piece(void *context, const xt_record_reader *r, xt_read_job *job, xt_status *status, xt_error *error) {
  range *all = context;
  (void)r, (void)status, (void)error;
  if (all->next == all->size) return false;
  job->at = all->next;
  job->size = xt_readers_piece(all->to + all->next, all->size - all->next);
  all->next += job->size;
  return true;
}

static xt_status read_piece(void *context, const xt_record_reader *r, const xt_read_job *job, xt_error *error) {
  range *all = context;
  uint32_t crc = 0;
  xt_status status =
      xt_readers_read(r, all->offset + job->at, all->to + job->at, job->size, all->sums ? &crc : NULL, error);
  if (all->sums) atomic_fetch_xor(&all->crc, xt_crc_shift(crc, all->size - job->at - job->size));
  return status;
}

xt_status xt_readers_fetch(const xt_record_reader *reader, uint64_t offset, uint8_t *to, size_t size, uint32_t *crc,
                           xt_error *error) {
  xt_record_reader r = *reader;
  range all = {.offset = offset, .to = to, .size = size, .sums = crc != NULL};
  unsigned count;
  if (crc) *crc = 0;
  if (reader->is_part) return xt_readers_read(reader, offset, to, size, crc, error);
  xt_readers_plan(&r, offset, offset + size, size, &count);
  if (size >= SMALLEST && reader->readers != 1) read_ahead(reader, offset, size);
  if (size <= XT_READ_PIECE || count == 1) return xt_readers_read(&r, offset, to, size, crc, error);
  xt_status status = xt_readers_run(&r, count, &(xt_read_work){take_piece, read_piece, &all}, error);
  if (crc) *crc = atomic_load(&all.crc);
  return status;
}

/* ---- Mapped files ---- */

static xt_status populate_piece(void *context, const xt_record_reader *r, const xt_read_job *job, xt_error *error) {
  range *all = context;
  xt_status status = XT_STATUS_ok;
  bool present = true;
  if (r->cold) xt_file_prefetch(r->file, job->at, job->size);
  for (uint64_t at = 0, step; at < job->size && present; at += step) {
    step = next_step(at, job->size);
    status = check_stop(r, at, error);
    if (status != XT_STATUS_ok) return status;
    present = xt_mapping_populate(all->to + job->at + at, step);
  }
  if (!present) status = xt_file_check(r->file, error);
  return present || status != XT_STATUS_ok
             ? status
             : xt_error_at(error, XT_STATUS_io, (int64_t)job->at, "the mapped file could not be read");
}

xt_status xt_readers_populate(const xt_record_reader *reader, xt_region *mapping, xt_error *error) {
  xt_record_reader r = *reader;
  range all = {.to = mapping->data, .size = mapping->size};
  unsigned count;
  r.memory = NULL;
  xt_readers_plan(&r, 0, mapping->size, mapping->size, &count);
  xt_pages_prefer_huge(mapping->data, mapping->size); /* file systems with large folios read and map these */
  xt_status status = xt_readers_run(&r, count, &(xt_read_work){take_piece, populate_piece, &all}, error);
  /* A system may ignore the advice, and then it does not notice that the file is shorter. */
  return status == XT_STATUS_ok ? xt_file_check(r.file, error) : status;
}
