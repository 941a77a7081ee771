#include "core/checkpoint/saver.h"

#include <libdeflate.h>

#include "core/memory/memory.h"
#include "core/os/mapping.h"

enum {
  MAX_COPY = 64 << 10,      /* payloads up to this size are copied into the buffer */
  FLUSH_SIZE = 256 << 10,   /* the buffer is flushed from this size on */
  MIN_BACKGROUND = 1 << 20, /* minimum payload size for checksums by the background thread */
  PIECE = 4 << 20,          /* of payloads without checksums */
  STOP_BYTES = 1 << 20,     /* the stop hook is asked after this many bytes */
  BRIEF_BYTES = 1 << 20     /* the largest brief step */
};
enum { BEGIN, PAYLOADS, END, DONE };

void xt_saver_begin(xt_saver *s) {
  s->total = 0;
  for (size_t i = 0; i < s->plan->count; i++) s->total += s->plan->payloads[i].bytes;
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
  if (s->plan->count - s->next <= SOON) return;
  const xt_payload *payload = &s->plan->payloads[s->next + SOON];
  for (uint64_t at = 0; payload->data && at < payload->bytes && at < LINES * LINE; at += LINE)
    __builtin_prefetch(payload->data + at);
}

/* Writes a piece of the current payload, or only computes its checksum if payloads are shared. */
static xt_status write_piece(xt_saver *s, const xt_sink *sink, uint64_t limit, xt_error *error) {
  const xt_payload *payload = &s->plan->payloads[s->next];
  size_t most = s->plan->format->crc ? XT_CHECKSUM_PIECE : PIECE;
  size_t size = s->data_end - s->at < most ? (size_t)(s->data_end - s->at) : most;
  if (payload->bytes > MAX_COPY && size > limit && !s->sum) size = (size_t)limit;
  const uint8_t *data = s->data + (s->at - s->data_at);
  xt_status status = XT_STATUS_ok;
  if (s->sum) xt_checksum_reach(s->sum, s->at + size);
  else if (s->plan->format->crc) s->crc = libdeflate_crc32(s->crc, data, size);
  if (payload->bytes <= MAX_COPY) xt_buffer_put(&s->out, data, size);
  else if (!sink->share) {
    status = flush(s, sink, error);
    if (status == XT_STATUS_ok) status = write_out(s, sink, data, size, error);
  }
  s->at += size;
  s->written += size;
  return status;
}

static xt_status check_stop(xt_saver *s, const xt_sink *sink, xt_error *error) {
  if (s->written - s->asked < STOP_BYTES) return XT_STATUS_ok;
  s->asked = s->written;
  if (!sink->stop || !sink->stop(sink->context)) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_stopping, "the save was stopped by the caller");
}

static xt_status write_pieces(xt_saver *s, const xt_sink *sink, uint64_t stop_at, xt_error *error) {
  const xt_payload *payload = &s->plan->payloads[s->next];
  uint64_t from = s->at;
  xt_status status = XT_STATUS_ok;
  while (status == XT_STATUS_ok && s->at < s->data_end && s->written < stop_at) {
    status = write_piece(s, sink, stop_at - s->written, error);
    if (status == XT_STATUS_ok) status = check_stop(s, sink, error);
  }
  if (status != XT_STATUS_ok || !sink->share || payload->bytes <= MAX_COPY || s->at == from) return status;
  status = flush(s, sink, error);
  s->flushed += s->at - from;
  const uint8_t *data = s->data + (from - s->data_at);
  return status == XT_STATUS_ok ? sink->share(sink->context, s->next, data, s->at - from, error) : status;
}

/* Sets `data` to what comes next of the payload. */
static xt_status get_data(xt_saver *s, xt_error *error) {
  const xt_payload *payload = &s->plan->payloads[s->next];
  uint64_t size = payload->bytes;
  s->data = payload->data;
  xt_status status = XT_STATUS_ok;
  if (!s->data && size) status = s->fetch(s->context, s->next, s->at, &s->data, &size, error);
  if (status != XT_STATUS_ok) return s->data = NULL, status;
  s->data_at = s->at;
  s->data_end = s->at + size;
  return status;
}

static xt_status begin_payload(xt_saver *s, xt_error *error) {
  s->at = 0;
  s->crc = 0;
  xt_status status = get_data(s, error); /* before anything is written, because it may fail and be repeated */
  if (status == XT_STATUS_ok && s->plan->format->before) s->plan->format->before(s, s->next);
  s->begun = status == XT_STATUS_ok;
  return status;
}

/* Lets the background thread compute the checksum of what this step will write. Not for shared payloads, because their
 * readers determine when the next step comes. Not if files are mapped, because the thread could block on a disk. */
static void submit_checksum(xt_saver *s, const xt_sink *sink, uint64_t stop_at) {
  const xt_payload *payload = &s->plan->payloads[s->next];
  bool eligible =
      s->plan->format->crc && payload->data && payload->bytes >= MIN_BACKGROUND && s->keeper.keep && !sink->share;
  if (!s->sum && !s->at && eligible && !atomic_load(&xt_memory_live.mapped))
    s->sum = xt_checksum_new(s->data, payload->bytes, s->keeper);
  if (!s->sum) return;
  uint64_t end = s->at + (stop_at - s->written);
  xt_checksum_allow(s->sum, end < payload->bytes ? (end + XT_CHECKSUM_PIECE - 1) / XT_CHECKSUM_PIECE * XT_CHECKSUM_PIECE
                                                 : payload->bytes);
}

static xt_status write_payload(xt_saver *s, const xt_sink *sink, uint64_t stop_at, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  const xt_payload *payload = &s->plan->payloads[s->next];
  prefetch_payload(s);
  if (!s->begun) status = begin_payload(s, error);
  else if (!s->data) status = get_data(s, error);
  if (status == XT_STATUS_ok) submit_checksum(s, sink, stop_at);
  if (status == XT_STATUS_ok) status = write_pieces(s, sink, stop_at, error);
  if (status != XT_STATUS_ok || s->at < s->data_end) return status;
  if (!payload->data && payload->bytes) s->done(s->context, s->next);
  s->data = NULL;
  if (s->at < payload->bytes) return status;
  if (s->sum) s->crc = xt_checksum_value(s->sum);
  xt_saver_stop(s);
  if (s->plan->format->after) s->plan->format->after(s, s->next, s->crc);
  s->next++;
  s->begun = false;
  return s->out.size >= FLUSH_SIZE || s->borrowed ? flush(s, sink, error) : status;
}

/* Missing pages of a truncated file read as zeros. */
static xt_status check_memory(const xt_saver *s, xt_error *error) {
  if (!atomic_load(&xt_memory_live.mapped)) return XT_STATUS_ok;
  for (size_t i = 0; i < s->plan->count; i++) {
    const xt_payload *payload = &s->plan->payloads[i];
    if (payload->data && xt_mapping_poisoned(payload->data, payload->bytes))
      return xt_error_set(error, XT_STATUS_file_changed,
                          "the mapped file of a tensor was truncated while the tensor was being saved; the save was "
                          "aborted");
  }
  return XT_STATUS_ok;
}

xt_status xt_saver_step(xt_saver *s, const xt_sink *sink, uint64_t budget, bool *finished, xt_error *error) {
  uint64_t stop_at = s->written + budget;
  xt_status status = XT_STATUS_ok;
  *finished = false;
  error->collect = false;
  if (s->failed) return xt_error_set(error, XT_STATUS_stale, "this save has already failed; start a new one");
  if (s->phase == BEGIN) {
    s->plan->format->begin(s);
    s->phase = PAYLOADS;
  }
  while (status == XT_STATUS_ok && s->phase == PAYLOADS && s->written < stop_at) {
    if (s->next == s->plan->count) s->phase = END;
    else status = write_payload(s, sink, stop_at, error);
  }
  if (status == XT_STATUS_ok && s->phase == END) {
    if (s->plan->format->end) s->plan->format->end(s);
    status = flush(s, sink, error);
    if (status == XT_STATUS_ok) status = check_memory(s, error);
    s->phase = DONE;
  }
  s->failed = status != XT_STATUS_ok && !error->collect;
  if (s->failed) xt_saver_stop(s);
  *finished = s->phase == DONE && status == XT_STATUS_ok;
  return status;
}

bool xt_saver_is_brief(const xt_saver *s, uint64_t bytes) {
  bool reads_file = s->plan->format->crc && atomic_load(&xt_memory_live.mapped); /* a checksum reads mapped pages */
  if (bytes > BRIEF_BYTES || reads_file || s->failed || s->phase != PAYLOADS || !s->data || s->next >= s->plan->count)
    return false;
  uint64_t rest = s->data_end - s->at;
  return rest > XT_CHECKSUM_PIECE && bytes < rest - XT_CHECKSUM_PIECE;
}

void xt_saver_stop(xt_saver *s) {
  xt_checksum_free(s->sum);
  s->sum = NULL;
}

void xt_saver_free(xt_saver *s) {
  xt_saver_stop(s);
  if (s->data && s->next < s->plan->count && !s->plan->payloads[s->next].data) s->done(s->context, s->next);
  xt_buffer_free(&s->out);
  xt_arena_free(&s->arena);
  xt_buffer_free(&s->central);
}
