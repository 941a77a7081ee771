#include "core/formats/feed.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/format.h"
#include "core/checkpoint/push_stored.h"
#include "core/formats/detect.h"
#include "core/formats/open.h"
#include "core/formats/other_file.h"
#include "core/formats/plain_pickle.h"
#include "core/formats/tar.h"
#include "core/memory/memory.h"
#include "core/memory/prefault.h"

enum {
  LARGE = 4 << 20,           /* smaller storages are not prefaulted */
  PREFAULT_AHEAD = 16 << 20, /* how far prefaulting is ahead of the received bytes */
  PREFAULT_GAP = 2 << 20     /* distance to the bytes that are being received */
};
enum {
  CRC_PIECE = 256 << 10, /* fits into the CPU cache */
  MIN_HEAD = 9,          /* bytes from which detection can describe a stream that has ended */
  MIN_SIZE = 3,          /* size of the shortest checkpoint, a pickle */
  MIN_ROOM = 1024,       /* of the buffer */
  MAX_IDLE = 1 << 20     /* of the buffer while storages are received */
};

/* Size of a checkpoint of unknown size. Larger offsets denote addresses. */
#define MAX_SIZE (XT_INLINE - 1)

void xt_push_begin_checkpoint(xt_checkpoint *c, const xt_limits *limits, bool strict, bool verify) {
  xt_checkpoint_begin(c, MAX_SIZE, 0, limits, strict, verify);
  if (!c->opening) return;
  c->opening->size_unknown = true;
  xt_opening_set_present(c->opening, 0);
}

void xt_push_begin(xt_push *p, xt_checkpoint *checkpoint, uint64_t spool_bytes) {
  memset(p, 0, sizeof *p);
  p->checkpoint = checkpoint;
  p->strict = checkpoint->opening && checkpoint->opening->rebuild.strict;
  p->verify = checkpoint->opening && checkpoint->opening->verify;
  p->spool_bytes = spool_bytes;
  p->reading = "the header that identifies the format";
  p->needed = MIN_SIZE;
}

/* ---- Detection of the format ---- */

static xt_status begin_format(xt_push *p, const xt_format *format, xt_error *error) {
  if (!format->push)
    return xt_error_set(error, XT_STATUS_unsupported, "a %s file cannot be read as a stream; %s", format->name,
                        format->without_stream);
  if (format->push->work_size && !(p->work = calloc(1, format->push->work_size))) return xt_opening_no_memory(error);
  p->format = p->checkpoint->format = format;
  return format->push->step(p, error);
}

/* Uses the first bytes of the stream as the head of a file. */
static xt_status detect_by_head(xt_push *p, size_t size, xt_error *error) {
  const xt_format *format;
  xt_status status = xt_detect(xt_push_data(p), size < XT_DETECT_SIZE ? size : XT_DETECT_SIZE, &format, error);
  return status == XT_STATUS_ok ? begin_format(p, format, error) : status;
}

/* The first pickle distinguishes the formats that begin with one. A stream that does not begin with a pickle after all
 * may be something that detection can describe. */
static xt_status detect_by_pickle(xt_push *p, xt_error *error) {
  const xt_format *format;
  xt_status status;
  size_t size, available = xt_push_available(p);
  if (xt_push_scan_pickle(p, &size, &status, error)) return detect_by_head(p, size, error);
  xt_error invalid = *error;
  if (status != XT_STATUS_corrupt) return status;
  size = available < XT_DETECT_SIZE ? available : XT_DETECT_SIZE;
  if (xt_detect(xt_push_data(p), size, &format, error) == XT_STATUS_ok) *error = invalid;
  return error->status;
}

/* Scans the first bytes as a pickle. Returns XT_SCAN_END for a whole one, which may be shorter than the signatures of
 * other formats. Returns XT_SCAN_SHORT for what may be the beginning of one, and reduces *needed to the bytes that the
 * pickle has at least: bytes after its end may belong to another save and could not be returned. */
static xt_pickle_scan_result scan_head(xt_push *p, size_t *needed) {
  xt_pickle_scan_state scan = {0};
  const uint8_t *data = xt_push_data(p);
  size_t available = xt_push_available(p);
  xt_pickle_scan_result result = xt_pickle_scan(data, available, &scan);
  if (result == XT_SCAN_SHORT && scan.at + scan.wanted < *needed) *needed = scan.at + (size_t)scan.wanted;
  if (result == XT_SCAN_END && scan.at < xt_plain_pickle_min_size(*data)) return XT_SCAN_INVALID;
  return result == XT_SCAN_SHORT && !xt_plain_pickle_may_begin_short(data, available) ? XT_SCAN_INVALID : result;
}

/* Returns whether a stream that begins so is no checkpoint, whatever follows. A peer that speaks another protocol may
 * never send more. Of text, the first line is awaited, which describes it; of what may be a tar file, its header. */
static bool is_hopeless(const uint8_t *data, size_t size) {
  if (!xt_detect_no_signature(data, size) || xt_detect_guess(data, size)) return false;
  if (xt_other_file_may_begin_flatbuffer(data, size)) return false;
  if (!xt_other_file_is_text(data, size)) return !xt_tar_may_begin(data, size);
  bool multipart = size > 1 && data[0] == '-' && data[1] == '-'; /* the next line says so */
  return !multipart && (memchr(data, '\r', size) || memchr(data, '\n', size));
}

/* The first step: detects the format by its signature, or else by its first pickle, or else by as many bytes as for a
 * file. */
static xt_status detect_step(xt_push *p, xt_error *error) {
  const uint8_t *data = xt_push_data(p);
  size_t available = xt_push_available(p), needed, more = XT_DETECT_SIZE;
  /* a longer pickle is scanned as it arrives */
  xt_pickle_scan_result pickle = available <= XT_DETECT_SIZE ? scan_head(p, &more) : XT_SCAN_SHORT;
  bool whole = pickle == XT_SCAN_END;
  if (pickle == XT_SCAN_INVALID && is_hopeless(data, available)) return detect_by_head(p, available, error);
  const xt_format *format = xt_detect_signature(data, available, &needed);
  if (needed && !whole) return xt_push_request(p, available + 1, 0);
  if (!format && (whole || xt_plain_pickle_may_begin(*data))) return detect_by_pickle(p, error);
  if (!format) format = xt_detect_guess(data, available);
  if (format) return begin_format(p, format, error);
  if (available >= XT_DETECT_SIZE) return detect_by_head(p, available, error);
  bool text = xt_other_file_is_text(data, available);
  return xt_push_request(p, text && available < more ? available + 1 : more, 0);
}

/* ---- The spool ---- */

/* Frees the private data of the format. */
static void free_format_work(xt_push *p) {
  if (p->work && p->format->push->free_work) p->format->push->free_work(p->work);
  free(p->work);
  p->work = NULL;
}

/* Resizes the buffer, whose room counts in the budget. */
static bool resize_buffer(xt_buffer *b, size_t room) {
  int64_t more = (int64_t)room - (int64_t)b->room;
  if (more > 0 && !xt_memory_charge(more)) return false;
  uint8_t *data = realloc(b->data, room);
  if (!data && more > 0) xt_memory_discharge(more);
  if (!data) return false;
  if (more < 0) xt_memory_discharge(-more);
  b->data = data;
  b->room = room;
  return true;
}

/* Appends bytes of the stream. Reserves a quarter more than needed, so that many small chunks are not copied again and
 * again, but only if the budget allows it. */
static xt_status put(xt_push *p, const uint8_t *data, size_t size, xt_error *error) {
  xt_buffer *b = &p->buffer;
  size_t room = b->size + size;
  if (p->unpacked && !xt_push_stored_fits(p, room)) return xt_push_stored_exceeded(p, error);
  if (room > b->room && !resize_buffer(b, room + room / 4 + MIN_ROOM) && !resize_buffer(b, room)) {
    if (xt_region_refused(error) == XT_STATUS_limit)
      snprintf(error->message, sizeof error->message,
               "the native memory budget is exceeded after %zu bytes of the stream had to be kept in memory; raise "
               "`config :extorch, budget:`, or write the stream to a file and load that",
               b->size);
    return error->status;
  }
  xt_buffer_put(b, data, size);
  return XT_STATUS_ok;
}

static void free_spool(xt_region *self) {
  xt_memory_discharge((int64_t)self->size);
  free(self->owner);
}

static xt_status load_spool(xt_push *p, xt_error *error) {
  bool finished = false;
  xt_record_reader reader = {
      .checkpoint = p->checkpoint, .memory = p->spool, .verify = p->verify, .stop = p->stop, .context = p->context};
  xt_status status = xt_batch_load_begin(&p->loader, &reader, p->wanted, error);
  p->loader.reader.copies = p->loader.total < p->spool->size / 2; /* most of the spool is not needed any more */
  if (status == XT_STATUS_ok) status = xt_batch_load_step(&p->loader, UINT64_MAX / 2, &finished, error);
  for (size_t i = 0; status == XT_STATUS_ok && i < p->storages; i++) {
    p->regions[i] = p->loader.regions[i];
    p->completed[i] = p->regions[i] != NULL;
    p->loader.regions[i] = NULL;
  }
  p->received = p->loader.done;
  xt_batch_load_free(&p->loader);
  if (status == XT_STATUS_ok) p->event = XT_PUSH_DONE;
  return status;
}

/* Opens the spool again as a file whose size is known. */
static xt_status open_spool(xt_push *p, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  xt_need need;
  xt_status status;
  size_t size = p->spooled + p->consumed;
  if (!resize_buffer(&p->buffer, size)) return xt_opening_no_memory(error);
  uint8_t *data = p->buffer.data;
  p->spool = xt_region_foreign(data, size, data, free_spool); /* run_step clears p->buffer afterwards */
  if (!p->spool) return xt_opening_no_memory(error);
  xt_limits limits = c->opening->limits;
  free_format_work(p);
  xt_checkpoint_free(c);
  xt_checkpoint_begin(c, size, 0, &limits, p->strict, p->verify);
  xt_push_stored_limit(p, size);
  if (p->format->whole_file) c->memory = xt_region_keep(p->spool); /* opening would make a copy of it */
  while ((status = xt_open_step(c, &need, error)) == XT_STATUS_ok && need.size)
    memcpy(need.to, data + need.offset, need.size);
  if (status == XT_STATUS_ok) status = xt_push_described(p, error);
  error->collect = false; /* the state has changed already, so the step cannot be repeated */
  return status;
}

/* ---- Feeding ---- */

static xt_status allocate(xt_push *p, xt_error *error) {
  if (p->region || !p->wanted[p->storage]) return XT_STATUS_ok;
  p->region = xt_slab_take(&p->slab, p->remaining);
  if (!p->region) return xt_region_refused(error);
  p->prefaulted = 0;
  return XT_STATUS_ok;
}

/* Prefaults memory a little ahead of the received bytes. Not further: the size of the storage is only what the stream
 * claims. */
static void prefault(xt_push *p) {
  size_t size = p->region->size, received = size - (size_t)p->remaining;
  size_t end = size - received < PREFAULT_AHEAD ? size : received + PREFAULT_AHEAD;
  if (size < LARGE || (end < p->prefaulted + PREFAULT_AHEAD / 2 && end != size) || end <= p->prefaulted) return;
  /* skip the bytes that are about to be filled */
  size_t from = p->prefaulted > received + PREFAULT_GAP ? p->prefaulted : received + PREFAULT_GAP;
  if (from < end) xt_prefault(p->region, from, end);
  p->prefaulted = end;
}

static xt_status receive(xt_push *p, const uint8_t *data, size_t size, size_t *at, xt_error *error) {
  xt_status status = allocate(p, error);
  if (status != XT_STATUS_ok) return status;
  if (p->region) prefault(p);
  size_t n = p->remaining < size - *at ? (size_t)p->remaining : size - *at;
  uint64_t bytes = p->checkpoint->storages.list[p->storage].bytes;
  if (p->region && n) memcpy(p->region->data + (bytes - p->remaining), data + *at, n);
  for (size_t done = 0; p->verify && done < n; done += CRC_PIECE)
    p->crc = libdeflate_crc32(p->crc, data + *at + done, n - done < CRC_PIECE ? n - done : CRC_PIECE);
  *at += n;
  p->at += n;
  p->remaining -= n;
  p->received += n;
  if (p->remaining) return status;
  xt_region *region = p->region;
  if (region && p->prefaulted) xt_prefault_cancel(region);
  p->region = NULL;
  p->receiving = false;
  return xt_push_complete(p, p->storage, region, error);
}

/* Completes the next wanted storage whose data is inside the pickle, if there is one. */
static xt_status complete_inline(xt_push *p, xt_error *error) {
  for (; p->inline_next < p->storages; p->inline_next++) {
    const xt_storage *storage = &p->checkpoint->storages.list[p->inline_next];
    if (!storage->data || !p->wanted[p->inline_next]) continue;
    xt_region *region = xt_slab_take(&p->slab, storage->bytes);
    if (!region) return xt_region_refused(error);
    memcpy(region->data, storage->data, storage->bytes);
    return xt_push_complete(p, (uint32_t)p->inline_next++, region, error);
  }
  return XT_STATUS_ok;
}

/* Removes the bytes that a step has consumed from the buffer. Returns the number of bytes after them that came from
 * the current chunk, and removes these as well: they are read from the chunk again, so that the data of storages is
 * copied only once. */
static size_t drop_consumed(xt_push *p, size_t added) {
  size_t rest = xt_push_available(p) - p->consumed, returned = rest < added ? rest : added;
  p->at += p->consumed;
  p->buffer.size -= returned;
  if (p->spooling) {
    p->spooled += p->consumed;
  } else {
    memmove(p->buffer.data, p->buffer.data + p->spooled + p->consumed, rest - returned);
    p->buffer.size = rest - returned;
    p->spooled = 0;
    /* a large pickle has been consumed */
    if (p->buffer.room > MAX_IDLE && p->buffer.size < MAX_IDLE / 2) resize_buffer(&p->buffer, MAX_IDLE / 2);
  }
  p->consumed = 0;
  return returned;
}

/* Removes the bytes of the current chunk that the next step does not need. Returns their number. */
static size_t return_surplus(xt_push *p, size_t added) {
  size_t available = xt_push_available(p), surplus = available > p->needed ? available - p->needed : 0;
  size_t returned = surplus < added ? surplus : added;
  p->buffer.size -= returned;
  return returned;
}

static xt_status step(xt_push *p, xt_error *error) {
  if (p->spool) return load_spool(p, error);
  xt_status status = p->format ? p->format->push->step(p, error) : detect_step(p, error);
  return status == XT_STATUS_ok && p->spool_complete ? open_spool(p, error) : status;
}

static xt_status run_step(xt_push *p, const uint8_t *data, size_t size, size_t *at, xt_error *error) {
  size_t available = xt_push_available(p), missing = p->needed > available ? p->needed - available : 0;
  size_t added = missing > p->lookahead ? missing : p->lookahead;
  if (added > size - *at) added = size - *at;
  if (p->spooling && added && p->buffer.size + added > p->spool_bytes)
    return xt_error_at(
        error, XT_STATUS_limit, (int64_t)p->at,
        "the object is not complete within the first %" PRIu64
        " bytes; raise the limit with limits: [spool_bytes: n], or write the stream to a file and load that",
        p->spool_bytes);
  xt_status status = put(p, data + *at, added, error);
  if (status != XT_STATUS_ok) return status;
  *at += added;
  if (xt_push_available(p) < p->needed) return XT_STATUS_ok;
  xt_push_stored_limit(p, p->buffer.room);
  status = step(p, error);
  if (status == XT_STATUS_ok && p->consumed) *at -= drop_consumed(p, added);
  else if (status == XT_STATUS_ok && !p->spool) *at -= return_surplus(p, added);
  if (p->spool && p->buffer.data == p->spool->data) {
    p->buffer = (xt_buffer){0};
    p->spooled = 0;
    p->spooling = false;
  }
  return status;
}

xt_status xt_push_feed(xt_push *p, const uint8_t *data, size_t size, size_t *used, xt_push_event *event,
                       xt_error *error) {
  xt_status status = XT_STATUS_ok;
  *used = 0;
  p->event = XT_PUSH_MORE;
  p->put_off = false;
  error->collect = false;
  if (p->failed)
    return xt_error_set(error, XT_STATUS_stale, "this stream has already ended or failed; start a new loader");
  if (!p->spool && !p->checkpoint->opening) return xt_opening_no_memory(error);
  if (!p->spool && !p->unpacked) xt_opening_set_present(p->checkpoint->opening, p->at + xt_push_available(p) + size);
  if (!p->spool) status = xt_push_stored_check(p, error);
  if (status == XT_STATUS_ok && p->regions && !p->spool) status = complete_inline(p, error);
  while (status == XT_STATUS_ok && p->event == XT_PUSH_MORE && !p->put_off) {
    bool idle = p->receiving ? p->remaining != 0 : xt_push_available(p) < p->needed;
    if (idle && *used == size) break;
    status = p->receiving ? receive(p, data, size, used, error) : run_step(p, data, size, used, error);
  }
  if (status == XT_STATUS_no_memory) {
    status = xt_allowance_explain(&p->checkpoint->allowance, status, error);
    error->collect = false; /* parsing cannot continue where it failed */
  }
  p->failed = (status != XT_STATUS_ok && !error->collect) || p->event == XT_PUSH_DONE;
  *event = p->event;
  return status;
}

uint64_t xt_push_missing(const xt_push *p) {
  size_t available = xt_push_available(p);
  uint64_t now = p->receiving ? p->remaining : p->needed > available ? p->needed - available : 0;
  return now > UINT64_MAX - p->pending ? UINT64_MAX : now + p->pending;
}

xt_status xt_push_end(xt_push *p, xt_error *error) {
  uint64_t position = p->at + xt_push_available(p);
  const xt_format *format;
  if (!p->format && position >= MIN_HEAD) {
    size_t size = position < XT_DETECT_SIZE ? (size_t)position : XT_DETECT_SIZE;
    if (xt_detect(xt_push_data(p), size, &format, error) != XT_STATUS_ok) return error->status;
  }
  return xt_error_at(error, XT_STATUS_truncated, (int64_t)position,
                     "the stream ended after %" PRIu64 " bytes: %s is not complete, at least %" PRIu64
                     " bytes are missing",
                     position, p->reading, xt_push_missing(p));
}

void xt_push_free(xt_push *p) {
  free_format_work(p);
  if (p->checkpoint) xt_opening_free(p->checkpoint);
  for (size_t i = 0; p->regions && i < p->storages; i++) xt_region_drop(p->regions[i]);
  if (p->region && p->prefaulted) xt_prefault_cancel(p->region);
  xt_region_drop(p->region);
  xt_region_drop(p->spool);
  xt_slab_free(&p->slab);
  xt_memory_discharge((int64_t)p->buffer.room);
  xt_buffer_free(&p->buffer);
  memset(p, 0, sizeof *p);
}
