/* Writes npy and npz files. */
#include "core/formats/npy.h"
#include "core/formats/zip.h"

#include <libdeflate.h>
#include <stdlib.h>

static const char *refuses(const xt_save_tensor *t) {
  if (t->kind != XT_SAVE_STRIDED) return "sparse, quantized or meta tensors";
  return *xt_dtype_get(t->dtype)->numpy ? NULL : xt_dtype_get(t->dtype)->name;
}

static void put_header(xt_buffer *out, const xt_save_plan *plan, size_t payload) {
  const xt_save_view *view = &plan->views[plan->payloads[payload].view];
  xt_npy_write_header(out, view->dtype, view->sizes, view->ndim);
}

static void begin_array(xt_saver *s) { put_header(&s->out, s->plan, 0); }

const xt_format_writer xt_npy_write = {.name = "npy", .refuses = refuses, .begin = begin_array};

/* ---- npz ---- */

enum { MAX_NAME = 60000 }; /* the name of a record has 65,535 bytes at most */

static void begin(xt_saver *s) { (void)s; }

static bool accepts(const char *name, size_t size) { return size && size <= MAX_NAME && !memchr(name, 0, size); }

/* Makes the name of the record, "a.npy", which ends in a NUL. */
static void put_name(const xt_saver *s, size_t i, xt_buffer *name) {
  const xt_sort_name *array = &s->plan->names[s->plan->payloads[i].view];
  xt_buffer_put(name, array->text, array->size);
  xt_buffer_put(name, ".npy", 5);
}

static void before(xt_saver *s, size_t i) {
  xt_buffer name = {0}, header = {0};
  put_name(s, i, &name);
  put_header(&header, s->plan, i);
  s->header = xt_saver_at(s);
  s->prefix_size = header.size;
  if (!name.failed && !header.failed) {
    s->prefix_crc = libdeflate_crc32(0, header.data, header.size);
    xt_zip_put_header(s, (const char *)name.data, header.size + s->plan->payloads[i].bytes);
    xt_buffer_put(&s->out, header.data, header.size);
  } else {
    s->out.failed = true;
  }
  xt_buffer_free(&name);
  xt_buffer_free(&header);
}

/* The CRC of two runs of bytes from those of each. As in zlib: appending a zero bit to the first is a linear map, whose
 * powers are computed by squaring. */
static uint32_t times(const uint32_t *matrix, uint32_t vector) {
  uint32_t sum = 0;
  for (; vector; vector >>= 1, matrix++)
    if (vector & 1) sum ^= *matrix;
  return sum;
}

static uint32_t combine_crcs(uint32_t first, uint32_t second, uint64_t second_size) {
  uint32_t map[32] = {0xEDB88320}, square[32];
  for (int i = 1; i < 32; i++) map[i] = 1u << (i - 1);
  for (uint64_t bits = 8 * second_size; bits; bits >>= 1) {
    if (bits & 1) first = times(map, first);
    for (int i = 0; i < 32; i++) square[i] = times(map, map[i]);
    for (int i = 0; i < 32; i++) map[i] = square[i];
  }
  return first ^ second;
}

static void after(xt_saver *s, size_t i, uint32_t crc) {
  xt_buffer name = {0};
  uint64_t bytes = s->plan->payloads[i].bytes;
  put_name(s, i, &name);
  if (name.failed) s->out.failed = true;
  else
    xt_zip_finish_record(s, (const char *)name.data, s->prefix_size + bytes, combine_crcs(s->prefix_crc, crc, bytes),
                         s->header);
  xt_buffer_free(&name);
}

const xt_format_writer xt_npz_write = {.name = "npz",
                                       .crc = true,
                                       .refuses = refuses,
                                       .accepts = accepts,
                                       .begin = begin,
                                       .before = before,
                                       .after = after,
                                       .end = xt_zip_put_end};
