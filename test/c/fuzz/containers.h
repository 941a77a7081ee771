/* Builds checkpoint files around parts that a target has mutated. Everything else in them is correct. */
#ifndef XT_FUZZ_CONTAINERS_H
#define XT_FUZZ_CONTAINERS_H

#include <libdeflate.h>

#include "core/base/buffer.h"
#include "core/formats/legacy.h"
#include "core/formats/torch_stream.h"
#include "core/pickle/pickler.h"
#include "core/pickle/unpickle.h"
#include "fuzz.h"

/* ---- Storages ---- */

enum { MAX_STORAGES = 32, MAX_STORAGE_BYTES = 8192 };

typedef struct {
  xt_payload payloads[MAX_STORAGES];
  size_t count;
} storages;

/* The content of a storage depends only on its key. */
static void fill_content(const char *key, size_t key_size, uint8_t *to, size_t size) {
  uint32_t state = 2166136261u;
  for (size_t i = 0; i < key_size; i++) state = (state ^ (uint8_t)key[i]) * 16777619u;
  for (size_t i = 0; i < size; i++) to[i] = (uint8_t)((state = state * 1664525 + 1013904223) >> 24);
}

static bool has_content(const xt_storage *storage, const uint8_t *data, size_t size) {
  uint8_t expected[MAX_STORAGE_BYTES];
  REQUIRE(size <= sizeof expected);
  fill_content(storage->key, storage->key_size, expected, size);
  return !memcmp(expected, data, size);
}

static void add_storage(storages *s, const xt_storage *storage) {
  xt_payload *payload = &s->payloads[s->count];
  if (s->count == MAX_STORAGES || storage->key_size >= sizeof payload->key || storage->bytes > MAX_STORAGE_BYTES ||
      memchr(storage->key, 0, storage->key_size))
    return;
  uint8_t *data = malloc(storage->bytes + 1);
  fill_content(storage->key, storage->key_size, data, storage->bytes);
  *payload = (xt_payload){"", storage->dtype, storage->numel, storage->bytes, data, 0};
  memcpy(payload->key, storage->key, storage->key_size);
  s->count++;
}

/* Finds the storages that a pickle refers to, so that the file can contain them. */
static void find_storages(storages *s, const uint8_t *pickle, size_t size, xt_persistent_ids ids) {
  xt_error error;
  xt_allowance allowance = {.limit = 64 << 20};
  xt_arena arena = {.allowance = &allowance};
  xt_storages storages = {.arena = &arena, .max_tensor_bytes = 1 << 24};
  xt_rebuild rebuild = {.arena = &arena, .storages = &storages, .ids = ids, .error = &error};
  xt_node *root;
  size_t used;
  s->count = 0;
  if (xt_unpickle(pickle, size, &rebuild, &used, &root) == XT_STATUS_ok)
    for (size_t i = 0; i < storages.count; i++)
      if (!storages.list[i].data) add_storage(s, &storages.list[i]);
  xt_rebuild_free(&rebuild);
  xt_storages_free(&storages);
  xt_arena_free(&arena);
}

static void free_storages(storages *s) {
  for (size_t i = 0; i < s->count; i++) free((void *)(uintptr_t)s->payloads[i].data);
  s->count = 0;
}

/* ---- Pickles ---- */

typedef struct {
  const char *key;
  xt_dtype dtype; /* one that has a storage class */
  int64_t numel, offset;
  int ndim;
  const int64_t *sizes, *strides;
  bool requires_grad;
} tensor_spec;

static void put_dims(xt_pickler *p, const int64_t *dims, int ndim) {
  xt_pickler_put_mark(p);
  for (int d = 0; d < ndim; d++) xt_pickler_put_int(p, dims[d]);
  xt_pickler_put_tuple(p);
}

static void put_tensor(xt_pickler *p, const tensor_spec *t) {
  xt_pickler_put_global(p, "torch._utils\n_rebuild_tensor_v2\n");
  xt_pickler_put_mark(p);
  xt_pickler_put_mark(p);
  xt_pickler_put_text(p, "storage", 7);
  xt_pickler_put_global(p, xt_pickler_storage_class(t->dtype));
  xt_pickler_put_text(p, t->key, strlen(t->key));
  xt_pickler_put_text(p, "cpu", 3);
  xt_pickler_put_int(p, t->numel);
  xt_pickler_put_tuple(p);
  xt_pickler_put_persistent(p);
  xt_pickler_put_int(p, t->offset);
  put_dims(p, t->sizes, t->ndim);
  put_dims(p, t->strides, t->ndim);
  xt_pickler_put_bool(p, t->requires_grad);
  xt_pickler_put_global(p, "collections\nOrderedDict\n");
  xt_pickler_put_tuple_of(p, 0);
  xt_pickler_put_reduce(p);
  xt_pickler_put_tuple(p);
  xt_pickler_put_reduce(p);
}

/* A dict of four tensors, for targets that mutate something else. */
static void put_example(xt_pickler *p) {
  static const int64_t sizes[] = {2, 3}, strides[] = {3, 1};
  static const xt_dtype dtypes[] = {XT_float32, XT_int64, XT_uint8, XT_complex128};
  static const char *const keys[] = {"0", "1", "2", "3"};
  xt_pickler_begin(p);
  xt_pickler_put_dict(p);
  xt_pickler_put_mark(p);
  for (int i = 0; i < 4; i++) {
    xt_pickler_put_text(p, keys[i], 1);
    put_tensor(p, &(tensor_spec){keys[i], dtypes[i], 7 + i, 1, 2, sizes, strides, false});
  }
  xt_pickler_put_set_items(p);
  xt_pickler_stop(p);
}

/* ---- Zip ---- */

typedef struct {
  const char *name;
  size_t name_size;
  const uint8_t *data;
  size_t size;
  bool deflated, described; /* described: the checksum and sizes come after the data */
} zip_record;

/* The parts of a zip file and their fields, in the order of the file (see formats/zip.h). */
typedef enum { LOCAL, DESCRIPTOR, CENTRAL, END64, LOCATOR, END, GAP, PARTS } zip_part;
typedef struct {
  /* Returns the value of a field, given the correct one. NULL: no change. The "field" of a gap is the part that follows
   * it, and its value the number of bytes. */
  uint64_t (*edit)(void *context, zip_part part, size_t record, int field, uint64_t value);
  void *context;
  bool zip64;
  xt_buffer out;

  zip_part part;
  size_t record;
  int field;
} zip_writer;

static void zip_field(zip_writer *z, uint64_t value, size_t bytes) {
  int field = z->field++;
  xt_buffer_le(&z->out, z->edit ? z->edit(z->context, z->part, z->record, field, value) : value, bytes);
}

static void zip_begin(zip_writer *z, zip_part part, size_t record, uint32_t signature) {
  z->part = part;
  z->record = record;
  z->field = 0;
  zip_field(z, signature, 4);
}

static void zip_gap(zip_writer *z, zip_part next, size_t record) {
  xt_buffer_fill(&z->out, 0, z->edit ? z->edit(z->context, GAP, record, next, 0) % 256 : 0);
}

/* The fields that local headers and directory entries have in common. */
static void zip_common(zip_writer *z, const zip_record *r, uint32_t crc, size_t packed, bool sizes, size_t extra) {
  zip_field(z, 20, 2);
  zip_field(z, r->described ? 0x0808 : 0x0800, 2);
  zip_field(z, r->deflated ? 8 : 0, 2);
  zip_field(z, 0, 4);
  zip_field(z, sizes ? crc : 0, 4);
  zip_field(z, sizes ? packed : 0, 4);
  zip_field(z, sizes ? r->size : 0, 4);
  zip_field(z, r->name_size, 2);
  zip_field(z, extra, 2);
}

static void zip_write(zip_writer *z, const zip_record *records, size_t count) {
  uint64_t offsets[64];
  uint32_t sums[64];
  size_t packed_sizes[64];
  REQUIRE(count <= 64);
  for (size_t i = 0; i < count; i++) {
    const zip_record *r = &records[i];
    uint8_t *packed = malloc(r->size + 1024);
    sums[i] = libdeflate_crc32(0, r->data, r->size);
    packed_sizes[i] = r->size;
    if (r->deflated) {
      static struct libdeflate_compressor *compressor;
      if (!compressor) compressor = libdeflate_alloc_compressor(1);
      packed_sizes[i] = libdeflate_deflate_compress(compressor, r->data, r->size, packed, r->size + 1024);
    } else {
      memcpy(packed, r->data, r->size);
    }
    zip_gap(z, LOCAL, i);
    offsets[i] = z->out.size;
    size_t padding = (64 - (z->out.size + 30 + r->name_size + 4) % 64) % 64;
    zip_begin(z, LOCAL, i, 0x04034b50);
    zip_common(z, r, sums[i], packed_sizes[i], !r->described, 4 + padding);
    xt_buffer_put(&z->out, r->name, r->name_size);
    zip_field(z, 0x4246, 2);
    zip_field(z, padding, 2);
    xt_buffer_fill(&z->out, 'Z', padding);
    xt_buffer_put(&z->out, packed, packed_sizes[i]);
    free(packed);
    if (!r->described) continue;
    zip_begin(z, DESCRIPTOR, i, 0x08074b50);
    zip_field(z, sums[i], 4);
    zip_field(z, packed_sizes[i], 4);
    zip_field(z, r->size, 4);
  }
  zip_gap(z, CENTRAL, 0);
  uint64_t directory = z->out.size;
  for (size_t i = 0; i < count; i++) {
    zip_begin(z, CENTRAL, i, 0x02014b50);
    zip_field(z, 0, 2);
    zip_common(z, &records[i], sums[i], packed_sizes[i], true, 0);
    for (int field = 0; field < 3; field++) zip_field(z, 0, 2); /* comment, disk, attributes */
    zip_field(z, 0, 4);
    zip_field(z, offsets[i], 4);
    xt_buffer_put(&z->out, records[i].name, records[i].name_size);
  }
  uint64_t end = z->out.size;
  if (z->zip64) {
    zip_begin(z, END64, 0, 0x06064b50);
    zip_field(z, 44, 8);
    zip_field(z, 45, 4);
    zip_field(z, 0, 4);
    zip_field(z, 0, 4);
    zip_field(z, count, 8);
    zip_field(z, count, 8);
    zip_field(z, end - directory, 8);
    zip_field(z, directory, 8);
    zip_begin(z, LOCATOR, 0, 0x07064b50);
    zip_field(z, 0, 4);
    zip_field(z, end, 8);
    zip_field(z, 1, 4);
  }
  zip_gap(z, END, 0);
  zip_begin(z, END, 0, 0x06054b50);
  zip_field(z, 0, 2);
  zip_field(z, 0, 2);
  zip_field(z, count, 2);
  zip_field(z, count, 2);
  zip_field(z, end - directory, 4);
  zip_field(z, directory, 4);
  zip_field(z, 0, 2);
  zip_gap(z, PARTS, 0);
}

/* ---- The other formats ---- */

static xt_status put_bytes(void *context, const void *data, size_t size, xt_error *error) {
  (void)error;
  xt_buffer_put(context, data, size);
  return XT_STATUS_ok;
}

/* Legacy and streaming files, by core's own writers. */
static void save_as(const xt_format_writer *format, const uint8_t *pickle, size_t size, storages *s, xt_buffer *out) {
  xt_error error;
  xt_save_plan plan = {.format = format,
                       .payloads = s->payloads,
                       .count = s->count,
                       .pickle = {.data = (uint8_t *)(uintptr_t)pickle, .size = size},
                       .root = "archive"};
  xt_saver saver = {.plan = &plan};
  xt_sink sink = {.write = put_bytes, .context = out};
  bool finished = false;
  xt_saver_begin(&saver);
  while (!finished) REQUIRE(xt_saver_step(&saver, &sink, 1 << 20, &finished, &error) == XT_STATUS_ok);
  xt_saver_free(&saver);
}

static void put_tar_member(xt_buffer *out, const uint8_t header[512], const void *data, size_t size) {
  uint8_t block[512];
  unsigned sum = 0;
  char text[16];
  memcpy(block, header, 512);
  memset(block + 148, ' ', 8);
  for (int i = 0; i < 512; i++) sum += block[i];
  snprintf(text, sizeof text, "%06o", sum);
  memcpy(block + 148, text, 7);
  xt_buffer_put(out, block, 512);
  xt_buffer_put(out, data, size);
  xt_buffer_fill(out, 0, (512 - size % 512) % 512);
}

static void make_tar_header(uint8_t header[512], const char *name, size_t size) {
  memset(header, 0, 512);
  snprintf((char *)header, 100, "%s", name);
  snprintf((char *)header + 124, 12, "%011zo", size);
  header[156] = '0';
  memcpy(header + 257, "ustar", 5);
}

static void gzip(xt_buffer *file) {
  static struct libdeflate_compressor *compressor;
  if (!compressor) compressor = libdeflate_alloc_compressor(1);
  xt_buffer packed = {0};
  size_t room = libdeflate_gzip_compress_bound(compressor, file->size);
  REQUIRE(xt_buffer_reserve(&packed, room));
  packed.size = libdeflate_gzip_compress(compressor, file->data, file->size, packed.data, room);
  REQUIRE(packed.size);
  xt_buffer_free(file);
  *file = packed;
}

/* Moves a file to memory of exactly its size, so that the sanitizer reports a read past its end. */
static uint8_t *exact_copy(xt_buffer *file, size_t *size) {
  REQUIRE(!file->failed);
  uint8_t *copy = malloc(file->size ? file->size : 1);
  if (file->size) memcpy(copy, file->data, file->size);
  *size = file->size;
  xt_buffer_free(file);
  return copy;
}

#endif
