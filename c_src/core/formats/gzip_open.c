/* Opens a gzip file: decompresses it into memory and opens the result, which may have any other format. */
#include "core/formats/gzip.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <string.h>

#include "core/base/cursor.h"

enum { MIN_CAPACITY = 1 << 20, MAX_RATIO = 1032 /* deflate cannot compress better */ };

static xt_status too_large(const xt_checkpoint *c, xt_error *error) {
  return xt_error_set(error, XT_STATUS_limit,
                      "the gzip file decompresses to far more than its size, which takes more than %" PRIu64
                      " bytes of memory; decompress it with gunzip or ExTorch.Streaming.gunzip/1, or raise the limit "
                      "with limits: [memory: n]",
                      c->allowance.limit);
}

/* Makes room for `size` bytes, or fewer if the allowance does not permit as many. The old memory exists until its
 * content is copied. */
static xt_status grow(xt_checkpoint *c, xt_region **region, size_t used, uint64_t size, xt_error *error) {
  uint64_t old_size = *region ? (*region)->size : 0, left = c->allowance.limit - c->allowance.used;
  if (left <= 2 * old_size) return too_large(c, error);
  if (size > left - old_size) size = left - old_size;
  xt_region *grown = xt_region_new(size, 0);
  if (!grown) return xt_region_refused(error);
  if (*region) memcpy(grown->data, (*region)->data, used);
  xt_region_drop(*region);
  *region = grown;
  return XT_STATUS_ok;
}

/* Decompresses all members. The last four bytes of a member are its decompressed size modulo 4 GiB: the last
 * member's is the first guess of the capacity, unless it cannot be true. */
static xt_status unpack(xt_checkpoint *c, xt_region **out, size_t *used, xt_error *error) {
  const uint8_t *packed = c->memory->data;
  size_t size = c->memory->size;
  struct libdeflate_decompressor *inflater = libdeflate_alloc_decompressor();
  if (!inflater) return xt_opening_no_memory(error);
  uint64_t capacity = xt_le(packed + size - 4, 4);
  if (capacity / MAX_RATIO > size || capacity > c->allowance.limit - c->allowance.used) capacity = 0;
  if (capacity < MIN_CAPACITY) capacity = MIN_CAPACITY;
  xt_status status = grow(c, out, 0, capacity, error);
  size_t at = 0, consumed, produced;
  *used = 0;
  while (status == XT_STATUS_ok && at < size) {
    enum libdeflate_result result = libdeflate_gzip_decompress_ex(
        inflater, packed + at, size - at, (*out)->data + *used, (*out)->size - *used, &consumed, &produced);
    if (result == LIBDEFLATE_SUCCESS) {
      at += consumed;
      *used += produced;
    } else if (result == LIBDEFLATE_INSUFFICIENT_SPACE && (*out)->size / MAX_RATIO <= size) {
      status = grow(c, out, *used, 2 * (uint64_t)(*out)->size, error);
    } else {
      status = xt_error_at(error, *used && result == LIBDEFLATE_BAD_DATA ? XT_STATUS_corrupt : XT_STATUS_truncated,
                           (int64_t)at, "the gzip file is corrupt or truncated; download it again");
    }
  }
  libdeflate_free_decompressor(inflater);
  return status;
}

static xt_match matches(const uint8_t *head, size_t size) {
  return size >= 2 && head[0] == 0x1f && head[1] == 0x8b ? XT_MATCH_YES : XT_MATCH_NO;
}

static xt_status open(xt_opening *o, xt_need *need, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  xt_region *whole = NULL;
  size_t used = 0;
  (void)need;
  if (c->unpacked)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "the gzip file contains another gzip file; decompress it first with gunzip");
  if (c->file_size < 18)
    return xt_error_set(error, XT_STATUS_truncated, "the gzip file is truncated; download it again");
  xt_status status = unpack(c, &whole, &used, error);
  if (status != XT_STATUS_ok) {
    xt_region_drop(whole);
    return status;
  }
  xt_region_drop(c->memory);
  c->memory = whole;
  c->unpacked = true;
  c->allowance.limit -= whole->size; /* fits, see grow */
  c->file_size = used;
  xt_opening_restart(o);
  return XT_STATUS_ok;
}

const xt_format xt_gzip_format = {
    .name = "gzip",
    .whole_file = true,
    .matches = matches,
    .signature = 2,
    .open = open,
    .without_stream = "decompress it first with ExTorch.Streaming.gunzip/1",
};
