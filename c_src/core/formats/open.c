#include "core/formats/open.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/format.h"
#include "core/formats/detect.h"

/* How often in a row a format may request no bytes. */
enum { MAX_EMPTY_STEPS = 8 };

static xt_status detect(xt_opening *o, xt_error *error) {
  const xt_format *format;
  xt_checkpoint *c = o->checkpoint;
  xt_status status = xt_detect(o->head, o->head_size, &format, error);
  if (status != XT_STATUS_ok) return status;
  if (c->base && !format->at_any_offset)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "found the format %s at offset %" PRIu64 ", but it is only supported at offset 0", format->name,
                        c->base);
  if (format->open_size && !(o->work = calloc(1, format->open_size))) return xt_opening_no_memory(error);
  c->format = format;
  return XT_STATUS_ok;
}

static xt_status request_head(xt_opening *o, xt_need *need, xt_error *error) {
  const xt_checkpoint *c = o->checkpoint;
  uint64_t rest = c->file_size > c->base ? c->file_size - c->base : 0;
  if (c->base && !rest)
    return xt_error_set(error, XT_STATUS_bad_argument,
                        "offset %" PRIu64 " is at or past the end of the file, which has %" PRIu64 " bytes", c->base,
                        c->file_size);
  o->head_size = rest < XT_DETECT_SIZE ? rest : XT_DETECT_SIZE;
  if (!rest) return detect(o, error);
  return xt_opening_request(o, &o->head, c->base, o->head_size, need, error);
}

static xt_status request_file(xt_checkpoint *c, xt_need *need, xt_error *error) {
  c->memory = xt_region_new(c->file_size - c->base, 0);
  if (!c->memory) return xt_region_refused(error);
  *need = (xt_need){c->base, c->memory->size, c->memory->data};
  return XT_STATUS_ok;
}

static xt_status step(xt_opening *o, xt_need *need, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  if (!c->format) {
    if (!o->head) return request_head(o, need, error);
    xt_status status = detect(o, error);
    if (status != XT_STATUS_ok) return status;
    if (c->format->whole_file && !c->memory) return request_file(c, need, error);
  }
  return c->format->open(o, need, error);
}

/* Fills the needs of a decompressed gzip file itself. */
static xt_status run(xt_checkpoint *c, xt_need *need, xt_error *error) {
  if (!c->opening) return xt_opening_no_memory(error);
  if (c->file_size >= XT_INLINE) /* such offsets denote addresses */
    return xt_error_set(error, XT_STATUS_limit,
                        "the file is too large: %" PRIu64 " bytes; files of up to 2 ** 62 bytes are supported",
                        c->file_size);
  for (int empty_steps = 0; empty_steps < MAX_EMPTY_STEPS;) {
    *need = (xt_need){0, 0, NULL};
    xt_status status = step(c->opening, need, error);
    if (status != XT_STATUS_ok) return status;
    if (!need->size && c->root) return xt_opening_free(c), status;
    if (!need->size) empty_steps++; /* a need of 0 bytes is filled at once */
    else if (!c->unpacked) return status;
    else memcpy(need->to, c->memory->data + need->offset, need->size);
  }
  return xt_error_set(error, XT_STATUS_corrupt, "the file does not contain an object");
}

xt_status xt_open_step(xt_checkpoint *c, xt_need *need, xt_error *error) {
  return xt_allowance_explain(&c->allowance, run(c, need, error), error);
}
