#include "core/checkpoint/saver.h"

#include <libdeflate.h>

#include "core/memory/memory.h"

enum {
  SMALL = 64 << 10, /* payloads up to this are gathered with what stands around them */
  GATHER = 256 << 10,
  HELPED = 1 << 20 /* from here on the idle thread helps with the checksum */
};
enum { BEGIN, PAYLOADS, END, OVER };

void xt_writer_begin(xt_writer *w) {
  w->total = 0;
  for (size_t i = 0; i < w->count; i++) w->total += w->payloads[i].bytes;
}

void xt_writer_append(xt_writer *w, const void *data, size_t size) {
  if (size <= SMALL || w->long_part) {
    xt_buffer_put(&w->out, data, size);
    return;
  }
  w->long_part = data;
  w->long_size = size;
  w->long_at = w->out.size;
}

static xt_status put(xt_writer *w, const xt_sink *sink, const void *data, size_t size, xt_error *error) {
  w->flushed += size;
  return size ? sink->write(sink->context, data, size, error) : XT_STATUS_ok;
}

static xt_status flush(xt_writer *w, const xt_sink *sink, xt_error *error) {
  if (w->out.failed || w->central.failed)
    return xt_error_set(error, XT_STATUS_no_memory, "no memory for the checkpoint's directory");
  if (!w->out.size && !w->long_part) return XT_STATUS_ok;
  const void *part = w->long_part;
  size_t size = w->long_size, first = w->long_at, rest = w->out.size - first;
  w->long_part = NULL;
  w->long_size = w->long_at = w->out.size = 0;
  xt_status status = put(w, sink, w->out.data, first, error);
  if (status == XT_STATUS_ok) status = put(w, sink, part, size, error);
  return status == XT_STATUS_ok ? put(w, sink, w->out.data + first, rest, error) : status;
}

/* Small payloads lie anywhere: those that come soon are brought into the cache meanwhile. */
static void look_ahead(const xt_writer *w) {
  enum { SOON = 8, LINE = 64, LINES = 4 };
  if (w->count - w->next <= SOON) return;
  const xt_payload *payload = &w->payloads[w->next + SOON];
  for (uint64_t at = 0; payload->data && at < payload->bytes && at < LINES * LINE; at += LINE)
    __builtin_prefetch(payload->data + at);
}

static xt_status write_piece(xt_writer *w, const xt_sink *sink, uint64_t most, xt_error *error) {
  const xt_payload *payload = &w->payloads[w->next];
  size_t size = payload->bytes - w->at < XT_PIECE ? (size_t)(payload->bytes - w->at) : XT_PIECE;
  if (payload->bytes > SMALL && size > most && !w->sum) size = (size_t)most;
  const uint8_t *from = w->data + w->at;
  xt_status status = XT_STATUS_ok;
  if (w->sum) xt_checksum_reach(w->sum, w->at + size);
  else if (w->layout->crc) w->crc = libdeflate_crc32(w->crc, from, size);
  if (payload->bytes <= SMALL) {
    xt_buffer_put(&w->out, from, size);
  } else {
    status = flush(w, sink, error);
    if (status == XT_STATUS_ok)
      status = sink->share ? sink->share(sink->context, w->next, from, size, error)
                           : sink->write(sink->context, from, size, error);
    w->flushed += size;
  }
  w->at += size;
  w->written += size;
  return status;
}

static xt_status begin_payload(xt_writer *w, xt_error *error) {
  const xt_payload *payload = &w->payloads[w->next];
  w->at = 0;
  w->crc = 0;
  w->data = payload->data;
  xt_status status = XT_STATUS_ok;
  /* first what may fail and be tried again */
  if (!w->data && payload->bytes) status = w->fetch(w->context, w->next, &w->data, error);
  if (status == XT_STATUS_ok && w->layout->before) w->layout->before(w, w->next);
  return status;
}

/* The idle thread may count what this step will write. Not where payloads are shared: their readers decide when the
 * next step comes. Nor where files are mapped: it could wait for a disk. */
static void get_help(xt_writer *w, const xt_sink *sink, uint64_t stop_at) {
  const xt_payload *payload = &w->payloads[w->next];
  bool suits = w->layout->crc && payload->data && payload->bytes >= HELPED && w->keeper.keep && !sink->share;
  if (!w->sum && !w->at && suits && !atomic_load(&xt_memory_live.mapped))
    w->sum = xt_checksum_new(w->data, payload->bytes, w->keeper);
  if (!w->sum) return;
  uint64_t end = w->at + (stop_at - w->written);
  xt_checksum_allow(w->sum, end < payload->bytes ? (end + XT_PIECE - 1) / XT_PIECE * XT_PIECE : payload->bytes);
}

static xt_status write_payload(xt_writer *w, const xt_sink *sink, uint64_t stop_at, bool *begun, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  const xt_payload *payload = &w->payloads[w->next];
  look_ahead(w);
  if (!*begun) status = begin_payload(w, error);
  *begun = true;
  if (status == XT_STATUS_ok) get_help(w, sink, stop_at);
  while (status == XT_STATUS_ok && w->at < payload->bytes && w->written < stop_at)
    status = write_piece(w, sink, stop_at - w->written, error);
  if (status != XT_STATUS_ok || w->at < payload->bytes) return status;
  if (!payload->data && payload->bytes) w->done(w->context, w->next);
  if (w->sum) w->crc = xt_checksum_value(w->sum);
  xt_writer_stop(w);
  if (w->layout->after) w->layout->after(w, w->next, w->crc);
  w->next++;
  *begun = false;
  return w->out.size >= GATHER || w->long_part ? flush(w, sink, error) : status;
}

xt_status xt_writer_step(xt_writer *w, const xt_sink *sink, uint64_t budget, bool *finished, xt_error *error) {
  uint64_t stop_at = w->written + budget;
  xt_status status = XT_STATUS_ok;
  bool begun = w->data != NULL && w->phase == PAYLOADS;
  *finished = false;
  error->collect = false;
  if (w->failed) return xt_error_set(error, XT_STATUS_stale, "this save failed before; begin again");
  if (w->phase == BEGIN) {
    w->layout->begin(w);
    w->phase = PAYLOADS;
  }
  while (status == XT_STATUS_ok && w->phase == PAYLOADS && w->written < stop_at) {
    if (w->next == w->count) w->phase = END;
    else status = write_payload(w, sink, stop_at, &begun, error);
    if (!begun) w->data = NULL;
  }
  if (status == XT_STATUS_ok && w->phase == END) {
    if (w->layout->end) w->layout->end(w);
    status = flush(w, sink, error);
    w->phase = OVER;
  }
  w->failed = status != XT_STATUS_ok && !error->collect;
  if (w->failed) xt_writer_stop(w);
  *finished = w->phase == OVER && status == XT_STATUS_ok;
  return status;
}

bool xt_writer_in_payload(const xt_writer *w, uint64_t bytes) {
  if (w->failed || w->phase != PAYLOADS || !w->data || w->next >= w->count) return false;
  uint64_t left = w->payloads[w->next].bytes - w->at;
  return left > XT_PIECE && bytes < left - XT_PIECE;
}

void xt_writer_stop(xt_writer *w) {
  xt_checksum_free(w->sum);
  w->sum = NULL;
}

void xt_writer_free(xt_writer *w) {
  xt_writer_stop(w);
  if (w->data && w->next < w->count && !w->payloads[w->next].data) w->done(w->context, w->next);
  xt_buffer_free(&w->out);
  xt_buffer_free(&w->central);
}
