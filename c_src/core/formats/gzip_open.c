/* A gzip of any other format: unpacked into memory, and then opened as what it holds. */
#include <libdeflate.h>
#include <string.h>

#include "core/base/cursor.h"
#include "core/checkpoint/record_reader.h"
#include "core/formats/format.h"
#include "core/memory/memory.h"

enum { START, WHOLE };
enum { FIRST_GUESS = 1 << 20, MAX_RATIO = 1032 };

/* What is unpacked may be as large as all tensors together; each is bounded again when it is opened. */
static xt_status grow(xt_region **region, size_t used, uint64_t size, xt_error *error) {
  xt_region *grown = xt_region_new(size ? size : 1, 0);
  if (!grown) return xt_region_refused(error);
  if (*region) memcpy(grown->data, (*region)->data, used);
  xt_region_drop(*region);
  *region = grown;
  return XT_STATUS_ok;
}

/* A gzip is one member after another, each with its length in its last four bytes, modulo 4 GiB. */
static xt_status unpack(const uint8_t *packed, size_t size, xt_region **out, size_t *used, xt_error *error) {
  struct libdeflate_decompressor *inflater = libdeflate_alloc_decompressor();
  if (!inflater) return xt_open_no_memory(error);
  uint64_t room = xt_le(packed + size - 4, 4);
  if (room < FIRST_GUESS) room = FIRST_GUESS;
  if (room / MAX_RATIO > size) room = (uint64_t)size * MAX_RATIO;
  xt_status status = grow(out, 0, room, error);
  size_t at = 0, in, made;
  *used = 0;
  while (status == XT_STATUS_ok && at < size) {
    enum libdeflate_result result = libdeflate_gzip_decompress_ex(
        inflater, packed + at, size - at, (*out)->data + *used, (*out)->size - *used, &in, &made);
    if (result == LIBDEFLATE_SUCCESS) {
      at += in;
      *used += made;
    } else if (result == LIBDEFLATE_INSUFFICIENT_SPACE && (*out)->size / MAX_RATIO <= size) {
      status = grow(out, *used, 2 * (uint64_t)(*out)->size, error);
    } else {
      status = xt_error_at(error, *used && result == LIBDEFLATE_BAD_DATA ? XT_STATUS_corrupt : XT_STATUS_truncated,
                           (int64_t)at, "the gzip is broken or cut off; fetch it again");
    }
  }
  libdeflate_free_decompressor(inflater);
  return status;
}

static xt_status step(xt_checkpoint *c, xt_need *need, xt_error *error) {
  if (c->state == START) {
    if (c->unpacked)
      return xt_error_set(error, XT_STATUS_unsupported, "a gzip within a gzip: unpack it first (gunzip)");
    if (c->file_size < 18) return xt_error_set(error, XT_STATUS_truncated, "the gzip is cut off");
    c->memory = xt_region_new(c->file_size, 0);
    if (!c->memory) return xt_region_refused(error);
    c->state = WHOLE;
    *need = (xt_need){0, c->file_size, c->memory->data};
    return XT_STATUS_ok;
  }
  xt_region *whole = NULL;
  size_t used = 0;
  xt_status status = unpack(c->memory->data, c->memory->size, &whole, &used, error);
  if (status != XT_STATUS_ok) {
    xt_region_drop(whole);
    return status;
  }
  xt_region_drop(c->memory);
  c->memory = whole;
  c->unpacked = true;
  c->file_size = used;
  c->state = START;
  c->format = NULL;
  c->head = NULL;
  return xt_checkpoint_step(c, need, error);
}

const xt_format xt_gzip_format = {"gzip", false, step};
