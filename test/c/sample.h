/* Small checkpoints made by the tests: pickles with views of storages, zip files with any records, and a reader of
 * checkpoints in memory. */
#ifndef XT_TEST_SAMPLE_H
#define XT_TEST_SAMPLE_H

#include <libdeflate.h>
#include <string.h>

#include "check.h"
#include "core/checkpoint/batch_load.h"
#include "core/formats/feed.h"
#include "core/formats/open.h"
#include "core/pickle/pickler.h"

static const xt_limits sample_limits = {.pickle_bytes = 64 << 20, .depth = 1000, .tensor_bytes = (uint64_t)1 << 40};

/* ---- Pickles ---- */

typedef struct {
  const char *name, *key, *class; /* class: "torch\nFloatStorage\n" */
  int64_t numel, offset;
  int ndim;
  int64_t sizes[4], strides[4];
} sample_view;

static inline void put_dims(xt_pickler *p, const int64_t *dims, int ndim) {
  xt_pickler_put_mark(p);
  for (int d = 0; d < ndim; d++) xt_pickler_put_int(p, dims[d]);
  xt_pickler_put_tuple(p);
}

/* name: _rebuild_tensor_v2(storage, offset, size, stride, False, OrderedDict()) */
static inline void put_view(xt_pickler *p, const sample_view *view, const char *location) {
  xt_pickler_put_text(p, view->name, strlen(view->name));
  xt_pickler_put_global(p, "torch._utils\n_rebuild_tensor_v2\n");
  xt_pickler_put_mark(p);
  xt_pickler_put_mark(p);
  xt_pickler_put_text(p, "storage", 7);
  xt_pickler_put_global(p, view->class);
  xt_pickler_put_text(p, view->key, strlen(view->key));
  xt_pickler_put_text(p, location, strlen(location));
  xt_pickler_put_int(p, view->numel);
  xt_pickler_put_tuple(p);
  xt_pickler_put_persistent(p);
  xt_pickler_put_int(p, view->offset);
  put_dims(p, view->sizes, view->ndim);
  put_dims(p, view->strides, view->ndim);
  xt_pickler_put_bool(p, false);
  xt_pickler_put_global(p, "collections\nOrderedDict\n");
  xt_pickler_put_tuple_of(p, 0);
  xt_pickler_put_reduce(p);
  xt_pickler_put_tuple(p);
  xt_pickler_put_reduce(p);
}

/* A dict of the views. */
static inline void put_views(xt_pickler *p, const sample_view *views, size_t count) {
  xt_pickler_begin(p);
  xt_pickler_put_dict(p);
  xt_pickler_put_mark(p);
  for (size_t i = 0; i < count; i++) put_view(p, &views[i], "cpu");
  xt_pickler_put_set_items(p);
  xt_pickler_stop(p);
}

/* ---- Zip files ---- */

typedef struct {
  xt_buffer out, central;
  unsigned records;
} zip_builder;

enum { ZIP_STORED = 0, ZIP_DEFLATED = 8, ZIP_DESCRIPTOR = 8 /* flag */ };

static inline void zip_add_with(zip_builder *zip, const char *name, const void *data, size_t size, int method,
                                int flags) {
  uint32_t crc = libdeflate_crc32(0, data, size);
  size_t packed = size, at = zip->out.size;
  void *deflated = NULL;
  if (method == ZIP_DEFLATED) {
    struct libdeflate_compressor *compressor = libdeflate_alloc_compressor(6);
    size_t room = libdeflate_deflate_compress_bound(compressor, size);
    deflated = malloc(room);
    packed = libdeflate_deflate_compress(compressor, data, size, deflated, room);
    CHECK(packed);
    libdeflate_free_compressor(compressor);
    data = deflated;
  }
  bool descriptor = flags & ZIP_DESCRIPTOR;
  for (int central = 0; central < 2; central++) {
    xt_buffer *out = central ? &zip->central : &zip->out;
    bool sizes = central || !descriptor;
    xt_buffer_put(out, central ? "PK\1\2\0\0" : "PK\3\4", central ? 6 : 4);
    xt_buffer_le(out, 0, 2);
    xt_buffer_le(out, (uint64_t)flags, 2);
    xt_buffer_le(out, (uint64_t)method, 2);
    xt_buffer_le(out, 0, 4);
    xt_buffer_le(out, sizes ? crc : 0, 4);
    xt_buffer_le(out, sizes ? packed : 0, 4);
    xt_buffer_le(out, sizes ? size : 0, 4);
    xt_buffer_le(out, strlen(name), 2);
    xt_buffer_fill(out, 0, central ? 12 : 2);
    if (central) xt_buffer_le(out, at, 4);
    xt_buffer_text(out, name);
  }
  xt_buffer_put(&zip->out, data, packed);
  if (descriptor) {
    xt_buffer_put(&zip->out, "PK\7\10", 4);
    xt_buffer_le(&zip->out, crc, 4);
    xt_buffer_le(&zip->out, packed, 4);
    xt_buffer_le(&zip->out, size, 4);
  }
  zip->records++;
  free(deflated);
}

static inline void zip_add(zip_builder *zip, const char *name, const void *data, size_t size) {
  zip_add_with(zip, name, data, size, ZIP_STORED, 0);
}

/* Appends the central directory and the end record. */
static inline void zip_finish(zip_builder *zip) {
  size_t at = zip->out.size, size = zip->central.size;
  xt_buffer_put(&zip->out, zip->central.data, size);
  xt_buffer_put(&zip->out, "PK\5\6\0\0\0\0", 8);
  xt_buffer_le(&zip->out, zip->records, 2);
  xt_buffer_le(&zip->out, zip->records, 2);
  xt_buffer_le(&zip->out, size, 4);
  xt_buffer_le(&zip->out, at, 4);
  xt_buffer_le(&zip->out, 0, 2);
  CHECK(!zip->out.failed);
}

static inline void zip_free(zip_builder *zip) {
  xt_buffer_free(&zip->out);
  xt_buffer_free(&zip->central);
}

/* ---- Reading ---- */

typedef struct {
  xt_checkpoint checkpoint;
  xt_region memory;
  xt_record_reader reader;
  xt_error error;
  xt_status status;
} sample;

/* Opens a checkpoint in memory. The caller keeps the bytes, and frees the sample. */
static inline xt_status sample_open_with(sample *s, const void *data, size_t size, const xt_limits *limits, bool strict,
                                         uint64_t base) {
  xt_need need = {0, 0, NULL};
  memset(s, 0, sizeof *s);
  s->memory = (xt_region){.data = (uint8_t *)(uintptr_t)data, .size = size};
  atomic_init(&s->memory.references, 1 << 20); /* never freed */
  xt_checkpoint_begin(&s->checkpoint, size, base, limits, strict, true);
  s->reader = (xt_record_reader){.checkpoint = &s->checkpoint, .memory = &s->memory, .verify = true};
  while ((s->status = xt_open_step(&s->checkpoint, &need, &s->error)) == XT_STATUS_ok && need.size) {
    s->status = xt_record_reader_fetch(&s->reader, need.offset, need.to, need.size, &s->error);
    if (s->status != XT_STATUS_ok) break;
  }
  if (s->checkpoint.unpacked) s->reader.memory = s->checkpoint.memory;
  return s->status;
}

static inline xt_status sample_open(sample *s, const void *data, size_t size) {
  return sample_open_with(s, data, size, &sample_limits, false, 0);
}

static inline void sample_free(sample *s) { xt_checkpoint_free(&s->checkpoint); }

/* Loads all storages. On success, the caller frees the load. */
static inline xt_status sample_load(sample *s, xt_batch_load *load) {
  bool finished = false;
  bool *wanted = calloc(s->checkpoint.storages.count + 1, 1);
  if (!wanted) return XT_STATUS_no_memory;
  memset(wanted, 1, s->checkpoint.storages.count);
  s->status = xt_batch_load_begin(load, &s->reader, wanted, &s->error);
  while (s->status == XT_STATUS_ok && !finished) s->status = xt_batch_load_step(load, 1 << 20, &finished, &s->error);
  free(wanted);
  if (s->status != XT_STATUS_ok) xt_batch_load_free(load);
  return s->status;
}

/* Feeds the bytes to a push parser, at most `piece` at once. Returns ok if it is done. */
static inline xt_status sample_push(const void *data, size_t size, size_t piece, const xt_limits *limits,
                                    uint64_t spool_bytes, bool verify, xt_error *error) {
  xt_checkpoint c;
  xt_push p;
  xt_push_event event = XT_PUSH_MORE;
  xt_status status = XT_STATUS_ok;
  memset(error, 0, sizeof *error);
  xt_push_begin_checkpoint(&c, limits, false, verify);
  xt_push_begin(&p, &c, spool_bytes);
  size_t at = 0, used;
  do { /* an event other than MORE may leave steps that need no further bytes */
    status = xt_push_feed(&p, (const uint8_t *)data + at, size - at < piece ? size - at : piece, &used, &event, error);
    at += used;
  } while (status == XT_STATUS_ok && event != XT_PUSH_DONE && (event != XT_PUSH_MORE || at < size));
  if (status == XT_STATUS_ok && event != XT_PUSH_DONE) status = xt_push_end(&p, error);
  xt_push_free(&p);
  xt_checkpoint_free(&c);
  return status;
}

#endif
