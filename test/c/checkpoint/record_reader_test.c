/* Views of a storage are the elements of the storage, however they are read: from a file or from memory, in either byte
 * order, aligned or not. The work is proportional to the bytes of the storage and the elements of the view, and stops
 * soon after the caller asks for it. */
#include "core/checkpoint/record_reader.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "core/memory/memory.h"

enum { ELEMENTS = 4 << 20 };

/* A storage of 32-bit numbers, at `at` in a file that is also in memory. Element i is i. */
typedef struct {
  uint8_t *bytes;
  xt_region memory;
  xt_record record, *records[1];
  xt_storage storage;
  xt_checkpoint checkpoint;
  xt_file file;
  char path[64];
} fixture;

static void make(fixture *f, size_t at, bool big_endian) {
  xt_error error;
  size_t size = at + 4 * (size_t)ELEMENTS;
  memset(f, 0, sizeof *f);
  f->bytes = calloc(1, size);
  CHECK(f->bytes);
  for (uint32_t i = 0; i < ELEMENTS; i++)
    for (int byte = 0; byte < 4; byte++)
      f->bytes[at + 4 * i + byte] = (uint8_t)(i >> 8 * (big_endian ? 3 - byte : byte));
  f->memory = (xt_region){.data = f->bytes, .size = size};
  atomic_init(&f->memory.references, 1 << 20); /* never freed */
  xt_record_set_data(&f->record, at, 4 * (uint64_t)ELEMENTS);
  f->records[0] = &f->record;
  f->storage = (xt_storage){.dtype = XT_int32, .element = XT_int32, .numel = ELEMENTS, .bytes = 4 * (uint64_t)ELEMENTS};
  f->checkpoint.big_endian = big_endian;
  f->checkpoint.records = f->records;
  f->checkpoint.storages.list = &f->storage;
  f->checkpoint.storages.count = 1;
  snprintf(f->path, sizeof f->path, "%s/record_reader.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  int fd = mkstemp(f->path);
  FILE *file = fd < 0 ? NULL : fdopen(fd, "wb");
  CHECK(file && fwrite(f->bytes, 1, size, file) == size && !fclose(file));
  CHECK(xt_file_open(&f->file, f->path, &error) == XT_STATUS_ok);
}

static void discard(fixture *f) {
  xt_file_close(&f->file);
  remove(f->path);
  free(f->bytes);
  CHECK(atomic_load(&xt_memory_live.bytes) == 0);
}

static size_t calls, stop_at; /* of the stop hook; 0 means never */

static bool stop(void *context) {
  (void)context;
  return ++calls == stop_at;
}

static xt_record_reader reader_of(fixture *f, bool in_memory) {
  return (xt_record_reader){
      .checkpoint = &f->checkpoint, .file = &f->file, .memory = in_memory ? &f->memory : NULL, .stop = stop};
}

/* Views with up to three dimensions. */
typedef struct {
  int64_t offset;
  uint32_t ndim;
  int64_t sizes[3], strides[3];
} view_case;

static const view_case cases[] = {
    {0, 1, {ELEMENTS}, {1}},
    {5, 1, {1000}, {4000}},
    {7, 2, {1000, 3}, {4000, 1000}},
    {7, 2, {3, 1000}, {1, 4000}},              /* transposed */
    {0, 2, {500, 500}, {4000, 4000}},          /* overlapping, a small step */
    {1, 2, {400, 500}, {4096, 5000}},          /* overlapping, a large step */
    {3, 3, {100, 100, 100}, {9000, 9001, 40}}, /* overlapping in three dimensions */
    {9, 2, {1000, 20}, {4000, 0}},             /* expanded */
    {11, 3, {10, 1, 100}, {200000, 0, 1999}},
};

static void check_view(fixture *f, const view_case *v, bool in_memory) {
  xt_error error;
  xt_view view;
  xt_record_reader reader = reader_of(f, in_memory);
  xt_tensor_desc t = {.dtype = XT_int32,
                      .ndim = v->ndim,
                      .offset = v->offset,
                      .sizes = (int64_t *)v->sizes,
                      .strides = (int64_t *)v->strides};
  calls = 0;
  CHECK(xt_record_reader_view(&reader, &t, &view, &error) == XT_STATUS_ok);
  /* about one call per MiB, and a few per window of a file */
  CHECK(calls <= 4 * 16 + 4 * (size_t)ELEMENTS / (128 << 10));
  int64_t index[3];
  int64_t sizes[3] = {v->sizes[0], v->ndim > 1 ? v->sizes[1] : 1, v->ndim > 2 ? v->sizes[2] : 1};
  for (index[0] = 0; index[0] < sizes[0]; index[0]++)
    for (index[1] = 0; index[1] < sizes[1]; index[1]++)
      for (index[2] = 0; index[2] < sizes[2]; index[2]++) {
        int64_t expected = v->offset, at = 0;
        for (uint32_t d = 0; d < v->ndim; d++) expected += index[d] * v->strides[d], at += index[d] * view.strides[d];
        int32_t value;
        memcpy(&value, view.data + 4 * at, sizeof value);
        CHECK(value == expected);
      }
  xt_region_drop(view.region);
}

static void reads_the_elements_of_a_view(void) {
  static const struct {
    size_t at;
    bool big_endian;
  } files[] = {{64, false}, {61, false}, {64, true}, {61, true}};
  for (size_t i = 0; i < COUNT_OF(files); i++) {
    fixture f;
    make(&f, files[i].at, files[i].big_endian);
    for (size_t j = 0; j < 2 * COUNT_OF(cases); j++) check_view(&f, &cases[j / 2], j % 2);
    discard(&f);
  }
}

/* Stops at every call of the hook. Nothing leaks. Returns the number of calls. */
static size_t stop_everywhere(fixture *f, const view_case *v, bool in_memory, bool verify) {
  xt_error error;
  xt_view view;
  xt_record_reader reader = reader_of(f, in_memory);
  reader.verify = verify;
  xt_tensor_desc t = {.dtype = XT_int32,
                      .ndim = v->ndim,
                      .offset = v->offset,
                      .sizes = (int64_t *)v->sizes,
                      .strides = (int64_t *)v->strides};
  for (stop_at = 1;; stop_at++) {
    calls = 0;
    xt_status status = xt_record_reader_view(&reader, &t, &view, &error);
    if (status == XT_STATUS_ok) break;
    CHECK(status == XT_STATUS_stopping && calls == stop_at && !view.region);
    CHECK(atomic_load(&xt_memory_live.bytes) == 0);
  }
  stop_at = 0;
  xt_region_drop(view.region);
  return calls;
}

static void stops(void) {
  fixture f;
  view_case whole = {0, 1, {ELEMENTS}, {1}}, spread = {0, 2, {700, 700}, {2900, 2900}};
  make(&f, 61, true); /* every byte is swapped, and no memory can be shared */
  /* copied, swapped and verified for each MiB of the 16 */
  CHECK(stop_everywhere(&f, &whole, true, false) >= 2 * 15);
  CHECK(stop_everywhere(&f, &whole, true, true) >= 3 * 15);
  CHECK(stop_everywhere(&f, &whole, false, true) >= 3 * 15);
  /* gathered: 490,000 elements */
  CHECK(stop_everywhere(&f, &spread, true, false) >= 5);
  CHECK(stop_everywhere(&f, &spread, false, false) >= 5);
  discard(&f);
}

int main(void) { return RUN_TESTS("record_reader", reads_the_elements_of_a_view, stops); }
