#include "core/checkpoint/saver.h"

#include <libdeflate.h>

#include "core/memory/memory.h"

enum {
  MAX_COPY = 64 << 10,     /* payloads up to this size are copied into the buffer */
  FLUSH_SIZE = 256 << 10,  /* the buffer is flushed from this size on */
  MIN_BACKGROUND = 1 << 20 /* minimum payload size for checksums by the background thread */
};
enum { BEGIN, PAYLOADS, END, DONE };

void xt_saver_begin(xt_saver *s) {
  s->total = 0;
  for (size_t i = 0; i < s->count; i++) s->total += s->payloads[i].bytes;
}

void xt_saver_append(xt_saver *s, const void *data, size_t size) {
  if (size <= MAX_COPY || s->borrowed) {
    xt_buffer_put(&s->out, data, size);
    return;
  }
  s->borrowed = data;
  s->borrowed_size = size;
  s->borrowed_at = s->out.size;
}

static xt_status write_out(xt_saver *s, const xt_sink *sink, const void *data, size_t size, xt_error *error) {
  s->flushed += size;
  return size ? sink->write(sink->context, data, size, error) : XT_STATUS_ok;
}

static xt_status flush(xt_saver *s, const xt_sink *sink, xt_error *error) {
  if (s->out.failed || s->central.failed)
    return xt_error_set(error, XT_STATUS_no_memory, "out of memory while writing the checkpoint");
  if (!s->out.size && !s->borrowed) return XT_STATUS_ok;
  const void *borrowed = s->borrowed;
  size_t size = s->borrowed_size, first = s->borrowed_at, rest = s->out.size - first;
  s->borrowed = NULL;
  s->borrowed_size = s->borrowed_at = s->out.size = 0;
  xt_status status = write_out(s, sink, s->out.data, first, error);
  if (status == XT_STATUS_ok) status = write_out(s, sink, borrowed, size, error);
  return status == XT_STATUS_ok ? write_out(s, sink, s->out.data + first, rest, error) : status;
}

/* Prefetches the beginning of a payload that comes soon: small payloads are scattered in memory. */
static void prefetch_payload(const xt_saver *s) {
  enum { SOON = 8, LINE = 64, LINES = 4 };
  if (s->count - s->next <= SOON) return;
  const xt_payload *payload = &s->payloads[s->next + SOON];
  for (uint64_t at = 0; payload->data && at < payload->bytes && at < LINES * LINE; at += LINE)
    __builtin_prefetch(payload->data + at);
}

static xt_status write_piece(xt_saver *s, const xt_sink *sink, uint64_t limit, xt_error *error) {
  const xt_payload *payload = &s->payloads[s->next];
  size_t size = payload->bytes - s->at < XT_CHECKSUM_PIECE ? (size_t)(payload->bytes - s->at) : XT_CHECKSUM_PIECE;
  if (payload->bytes > MAX_COPY && size > limit && !s->sum) size = (size_t)limit;
  const uint8_t *data = s->data + s->at;
  xt_status status = XT_STATUS_ok;
  if (s->sum) xt_checksum_reach(s->sum, s->at + size);
  else if (s->format->crc) s->crc = libdeflate_crc32(s->crc, data, size);
  if (payload->bytes <= MAX_COPY) {
    xt_buffer_put(&s->out, data, size);
  } else {
    status = flush(s, sink, error);
    if (status == XT_STATUS_ok)
      status = sink->share ? sink->share(sink->context, s->next, data, size, error)
                           : sink->write(sink->context, data, size, error);
    s->flushed += size;
  }
  s->at += size;
  s->written += size;
  return status;
}

static xt_status begin_payload(xt_saver *s, xt_error *error) {
  const xt_payload *payload = &s->payloads[s->next];
  s->at = 0;
  s->crc = 0;
  s->data = payload->data;
  xt_status status = XT_STATUS_ok;
  /* before anything is written, because it may fail and be repeated */
  if (!s->data && payload->bytes) status = s->fetch(s->context, s->next, &s->data, error);
  if (status == XT_STATUS_ok && s->format->before) s->format->before(s, s->next);
  return status;
}

/* Lets the background thread compute the checksum of what this step will write. Not for shared payloads, because their
 * readers determine when the next step comes. Not if files are mapped, because the thread could block on a disk. */
static void submit_checksum(xt_saver *s, const xt_sink *sink, uint64_t stop_at) {
  const xt_payload *payload = &s->payloads[s->next];
  bool eligible = s->format->crc && payload->data && payload->bytes >= MIN_BACKGROUND && s->keeper.keep && !sink->share;
  if (!s->sum && !s->at && eligible && !atomic_load(&xt_memory_live.mapped))
    s->sum = xt_checksum_new(s->data, payload->bytes, s->keeper);
  if (!s->sum) return;
  uint64_t end = s->at + (stop_at - s->written);
  xt_checksum_allow(s->sum, end < payload->bytes ? (end + XT_CHECKSUM_PIECE - 1) / XT_CHECKSUM_PIECE * XT_CHECKSUM_PIECE
                                                 : payload->bytes);
}

static xt_status write_payload(xt_saver *s, const xt_sink *sink, uint64_t stop_at, bool *begun, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  const xt_payload *payload = &s->payloads[s->next];
  prefetch_payload(s);
  if (!*begun) status = begin_payload(s, error);
  *begun = true;
  if (status == XT_STATUS_ok) submit_checksum(s, sink, stop_at);
  while (status == XT_STATUS_ok && s->at < payload->bytes && s->written < stop_at)
    status = write_piece(s, sink, stop_at - s->written, error);
  if (status != XT_STATUS_ok || s->at < payload->bytes) return status;
  if (!payload->data && payload->bytes) s->done(s->context, s->next);
  if (s->sum) s->crc = xt_checksum_value(s->sum);
  xt_saver_stop(s);
  if (s->format->after) s->format->after(s, s->next, s->crc);
  s->next++;
  *begun = false;
  return s->out.size >= FLUSH_SIZE || s->borrowed ? flush(s, sink, error) : status;
}

xt_status xt_saver_step(xt_saver *s, const xt_sink *sink, uint64_t budget, bool *finished, xt_error *error) {
  uint64_t stop_at = s->written + budget;
  xt_status status = XT_STATUS_ok;
  bool begun = s->data != NULL && s->phase == PAYLOADS;
  *finished = false;
  error->collect = false;
  if (s->failed) return xt_error_set(error, XT_STATUS_stale, "this save has already failed; start a new one");
  if (s->phase == BEGIN) {
    s->format->begin(s);
    s->phase = PAYLOADS;
  }
  while (status == XT_STATUS_ok && s->phase == PAYLOADS && s->written < stop_at) {
    if (s->next == s->count) s->phase = END;
    else status = write_payload(s, sink, stop_at, &begun, error);
    if (!begun) s->data = NULL;
  }
  if (status == XT_STATUS_ok && s->phase == END) {
    if (s->format->end) s->format->end(s);
    status = flush(s, sink, error);
    s->phase = DONE;
  }
  s->failed = status != XT_STATUS_ok && !error->collect;
  if (s->failed) xt_saver_stop(s);
  *finished = s->phase == DONE && status == XT_STATUS_ok;
  return status;
}

bool xt_saver_in_payload(const xt_saver *s, uint64_t bytes) {
  if (s->failed || s->phase != PAYLOADS || !s->data || s->next >= s->count) return false;
  uint64_t rest = s->payloads[s->next].bytes - s->at;
  return rest > XT_CHECKSUM_PIECE && bytes < rest - XT_CHECKSUM_PIECE;
}

void xt_saver_stop(xt_saver *s) {
  xt_checksum_free(s->sum);
  s->sum = NULL;
}

void xt_saver_free(xt_saver *s) {
  xt_saver_stop(s);
  if (s->data && s->next < s->count && !s->payloads[s->next].data) s->done(s->context, s->next);
  xt_buffer_free(&s->out);
  xt_buffer_free(&s->central);
}
