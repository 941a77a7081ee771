/* Opens bytes as a checkpoint and reads everything in it in every way: views and whole storages, from memory and from a
 * file. Every view must be inside its storage, every text must be readable and valid, and every way of reading must
 * return exactly the bytes of the record. */
#ifndef XT_FUZZ_READING_H
#define XT_FUZZ_READING_H

#include <sys/mman.h>
#include <unistd.h>

#include "core/checkpoint/batch_load.h"
#include "core/formats/open.h"
#include "core/memory/memory.h"
#include "fuzz.h"

static const xt_limits limits = {.pickle_bytes = 1 << 20, .depth = 1000, .tensor_bytes = 1 << 24};

/* Whether reading goes on: an input with many or large tensors must not take long. */
enum { MAX_TENSORS = 40, MAX_ELEMENTS = 1000, MAX_NODES = 20000 };
static const uint64_t max_read = 32 << 20;

typedef __int128 wide;

/* ---- Descriptions ---- */

static unsigned touched; /* keeps the compiler from dropping a read */

static void touch(const char *data, size_t size) {
  unsigned sum = 0;
  for (size_t i = 0; i < size; i++) sum += (uint8_t)data[i];
  touched += sum;
}

static bool is_utf8(const uint8_t *text, size_t size) {
  for (size_t i = 0, more; i < size; i += more + 1) {
    uint32_t c = text[i];
    more = c < 0x80 ? 0 : c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : size;
    if (more > size - i - 1) return false;
    c = more ? c & (0x3Fu >> more) : c;
    for (size_t k = 1; k <= more; k++) {
      if ((text[i + k] & 0xC0) != 0x80) return false;
      c = c << 6 | (text[i + k] & 0x3Fu);
    }
    if ((more == 2 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) || (more == 3 && (c < 0x10000 || c > 0x10FFFF)))
      return false;
  }
  return true;
}

static bool is_empty(const xt_tensor_desc *t) {
  for (uint32_t d = 0; d < t->ndim; d++)
    if (!t->sizes[d]) return true;
  return false;
}

/* The offset of the last element of a tensor that is not empty. */
static wide last_element(const xt_tensor_desc *t, const int64_t *strides) {
  wide last = 0;
  for (uint32_t d = 0; d < t->ndim; d++) last += (wide)(t->sizes[d] - 1) * strides[d];
  return last;
}

static void check_tensor(const xt_checkpoint *c, const xt_tensor_desc *t) {
  REQUIRE(t->dtype < XT_DTYPE_COUNT && t->ndim <= XT_MAX_DIMS && t->part_count <= 3);
  wide item = (wide)xt_dtype_get(t->dtype)->size, bytes = item, shape = item; /* shape: without the zeros */
  for (uint32_t d = 0; d < t->ndim; d++) {
    REQUIRE(t->sizes[d] >= 0 && t->strides[d] >= 0);
    bytes *= bytes > INT64_MAX ? 1 : t->sizes[d];
    shape *= shape > INT64_MAX || !t->sizes[d] ? 1 : t->sizes[d];
  }
  for (int i = 0; i < t->part_count; i++) check_tensor(c, t->more->parts[i]);
  if (t->layout != XT_LAYOUT_STRIDED) {
    REQUIRE(t->storage == XT_NO_STORAGE);
    return;
  }
  REQUIRE(shape <= INT64_MAX && bytes <= (wide)c->storages.max_tensor_bytes);
  if (t->storage == XT_NO_STORAGE) return;
  REQUIRE(t->storage < c->storages.count && t->offset >= 0);
  const xt_storage *storage = &c->storages.list[t->storage];
  if (!is_empty(t)) REQUIRE((t->offset + last_element(t, t->strides) + 1) * item <= (wide)storage->bytes);
  if (t->quantized && t->part_count == 2) {
    REQUIRE(t->more->axis >= 0 && t->more->axis < t->ndim);
    for (int i = 0; i < 2; i++) {
      const xt_tensor_desc *part = t->more->parts[i];
      REQUIRE(part->ndim == 1 && part->sizes[0] == t->sizes[t->more->axis]);
    }
  }
}

static void check_storages(const xt_checkpoint *c) {
  for (size_t i = 0; i < c->storages.count; i++) {
    const xt_storage *s = &c->storages.list[i];
    wide item = (wide)xt_dtype_get(s->dtype)->size;
    REQUIRE(s->numel >= 0 && (wide)s->bytes == s->numel * item);
    touch(s->key, s->key_size);
    touch(s->location, s->location_size);
    if (s->data) touch((const char *)s->data, s->bytes);
    const xt_record *record = c->records[i];
    if (!record) continue;
    REQUIRE(record->size >= s->bytes && (wide)(record->size - s->bytes) < item);
    touch(record->name, record->name_size);
  }
}

static void check_node(const xt_checkpoint *c, const xt_node *node, int *left) {
  if (--*left < 0) return;
  switch (node->kind) {
  case XT_NODE_TEXT: REQUIRE(is_utf8((const uint8_t *)node->text.data, node->text.size)); break;
  case XT_NODE_BIG:
  case XT_NODE_RAW_TEXT:
  case XT_NODE_BYTES:
  case XT_NODE_BYTEARRAY: touch(node->text.data, node->text.size); break;
  case XT_NODE_DICT: REQUIRE(node->list.count % 2 == 0); break;
  case XT_NODE_GLOBAL:
    touch(node->global.module, node->global.module_size);
    touch(node->global.name, node->global.name_size);
    break;
  case XT_NODE_DEVICE: touch(node->device.type, node->device.type_size); break;
  case XT_NODE_DTYPE: REQUIRE(node->dtype < XT_DTYPE_COUNT); break;
  case XT_NODE_SCALAR: REQUIRE(node->scalar.dtype < XT_DTYPE_COUNT); break;
  case XT_NODE_STORAGE: REQUIRE(node->storage.index < c->storages.count); break;
  case XT_NODE_BARE: REQUIRE(node->list.count == 1 && node->list.items[0]->tensor->bare); break;
  case XT_NODE_TENSOR: check_tensor(c, node->tensor); break;
  default: break;
  }
  REQUIRE(!node->on_path);
  for (size_t i = 0, count = xt_child_count(node); i<count && * left> 0; i++)
    check_node(c, xt_child_at(node, i).node, left);
}

static void check_index(const xt_checkpoint *c) {
  int left = MAX_NODES;
  for (size_t i = 0; i < c->index.count; i++) {
    const xt_index_entry *entry = &c->index.entries[i];
    check_tensor(c, entry->tensor);
    if (i >= MAX_TENSORS) continue;
    touch(entry->name, entry->name_size);
    for (const xt_path *step = entry->path; step && left > 0; step = step->parent)
      if (step->key) check_node(c, step->key, &left);
      else REQUIRE(step->position >= 0);
    size_t *found = xt_table_get(&c->index.names, entry->name, entry->name_size);
    REQUIRE(found && *found >= i && *found < c->index.count);
  }
}

static void check_checkpoint(const xt_checkpoint *c) {
  int left = MAX_NODES;
  REQUIRE(c->root && c->format);
  check_storages(c);
  check_index(c);
  check_node(c, c->root, &left);
  if (c->metadata) check_node(c, c->metadata, &left);
}

/* ---- Bytes ---- */

/* Compares the first elements of a tensor in memory with the bytes of its record. In a big-endian file the elements are
 * reversed; the two parts of a complex number separately. */
static void compare_tensor(const xt_checkpoint *c, const xt_tensor_desc *t, const xt_view *view,
                           const xt_region *record) {
  size_t item = xt_dtype_get(t->dtype)->size;
  bool swap = xt_checkpoint_needs_swap(c, t->storage);
  size_t part = !swap ? 1 : xt_dtype_get(t->dtype)->kind == XT_KIND_COMPLEX ? item / 2 : item;
  int64_t index[XT_MAX_DIMS] = {0};
  if (is_empty(t)) return;
  const uint8_t *start = view->region->data, *end = start + view->region->size;
  wide last = last_element(t, view->strides);
  REQUIRE(view->data >= start && last >= 0 && (last + 1) * (wide)item <= end - view->data);
  REQUIRE(xt_dtype_aligned(view->data, t->dtype));
  for (int n = 0; n < MAX_ELEMENTS; n++) {
    size_t at = (size_t)t->offset, to = 0;
    for (uint32_t d = 0; d < t->ndim; d++) {
      at += (size_t)(index[d] * t->strides[d]);
      to += (size_t)(index[d] * view->strides[d]);
    }
    for (size_t i = 0; i < item; i++) {
      size_t from = at * item + i / part * part + (part - 1 - i % part);
      REQUIRE(from < record->size && view->data[to * item + i] == record->data[from]);
    }
    uint32_t d = t->ndim;
    while (d > 0 && ++index[d - 1] == t->sizes[d - 1]) index[--d] = 0;
    if (!d) break;
  }
}

/* Whether a tensor has bytes that can be compared. A big-endian storage that is used with several dtypes is not: its
 * bytes are reversed as those of one of them. */
static bool has_bytes(const xt_checkpoint *c, const xt_tensor_desc *t) {
  if (t->storage == XT_NO_STORAGE || !c->records[t->storage]) return false;
  return !xt_checkpoint_needs_swap(c, t->storage) || c->storages.list[t->storage].element == t->dtype;
}

static uint64_t logical_bytes(const xt_tensor_desc *t) {
  uint64_t bytes = xt_dtype_get(t->dtype)->size;
  for (uint32_t d = 0; d < t->ndim; d++) bytes *= (uint64_t)t->sizes[d];
  return bytes;
}

/* What the content of a record must be, if the target knows it. */
typedef bool (*is_content)(const xt_storage *storage, const uint8_t *data, size_t size);

static void read_views(const xt_checkpoint *c, const xt_record_reader *reader, xt_region **whole, size_t file_size) {
  xt_error error;
  uint64_t total = 0;
  for (size_t i = 0; i < c->index.count && i < MAX_TENSORS && total < max_read; i++) {
    const xt_tensor_desc *t = c->index.entries[i].tensor;
    xt_view view;
    if (t->storage == XT_NO_STORAGE || !has_bytes(c, t) || !whole[t->storage]) continue;
    uint64_t bytes = logical_bytes(t) + 4 * whole[t->storage]->size;
    usage u = usage_begin();
    xt_status status = xt_record_reader_view(reader, t, &view, &error);
    usage_check(&u, file_size, bytes);
    total += logical_bytes(t);
    REQUIRE(status == XT_STATUS_ok);
    compare_tensor(c, t, &view, whole[t->storage]);
    xt_region_drop(view.region);
  }
}

static void read_batch(const xt_checkpoint *c, const xt_record_reader *reader, xt_region **whole, size_t file_size) {
  xt_error error;
  xt_batch_load load;
  bool finished = false;
  uint64_t total = 0;
  bool *wanted = calloc(c->storages.count + 1, 1);
  for (size_t i = 0; i < c->storages.count; i++)
    if (whole[i]) wanted[i] = true, total += c->records[i]->size + c->records[i]->packed;
  usage u = usage_begin();
  xt_status status = xt_batch_load_begin(&load, reader, wanted, &error);
  while (status == XT_STATUS_ok && !finished) status = xt_batch_load_step(&load, 1000, &finished, &error);
  /* A slab also holds what is between the records. */
  usage_check(&u, file_size, total + file_size + 4096 * c->storages.count);
  REQUIRE(status == XT_STATUS_ok);
  for (size_t i = 0; i < c->index.count && i < MAX_TENSORS; i++) {
    const xt_tensor_desc *t = c->index.entries[i].tensor;
    xt_view view;
    if (t->storage == XT_NO_STORAGE || !has_bytes(c, t) || !whole[t->storage]) continue;
    xt_record_reader_view_region(load.regions[t->storage], t, &view);
    compare_tensor(c, t, &view, whole[t->storage]);
    xt_region_drop(view.region);
  }
  xt_batch_load_free(&load);
  free(wanted);
}

/* Reads the record of each storage. Those that cannot be read (a wrong header, a wrong checksum) stay NULL, unless the
 * target knows their content: then all can be read. */
static xt_region **read_records(const xt_checkpoint *c, const xt_record_reader *reader, size_t file_size,
                                is_content expected) {
  xt_error error;
  uint64_t total = 0;
  xt_region **whole = calloc(c->storages.count + 1, sizeof *whole);
  for (size_t i = 0; i < c->storages.count && total < max_read; i++) {
    xt_record *record = c->records[i];
    const xt_storage *storage = &c->storages.list[i];
    if (!record) continue;
    usage u = usage_begin();
    xt_status status = xt_record_reader_whole(reader, record, &whole[i], &error);
    usage_check(&u, file_size, 2 * (record->size + record->packed));
    total += record->size;
    if (status != XT_STATUS_ok) {
      REQUIRE(error.message[0] && !expected);
      whole[i] = NULL;
    } else if (storage->data) {
      REQUIRE(!memcmp(whole[i]->data, storage->data, storage->bytes));
    } else if (expected) {
      REQUIRE(expected(storage, whole[i]->data, storage->bytes));
    }
  }
  return whole;
}

/* No two records share bytes. Called after reading, when the offsets of all records are known. */
static void check_overlap(const xt_checkpoint *c, xt_region *const *whole) {
  for (size_t i = 0; i < c->storages.count && i < MAX_TENSORS; i++)
    for (size_t k = 0; k < i && whole[i]; k++) {
      const xt_record *a = c->records[i], *b = c->records[k];
      if (!whole[k] || a == b || a->data_offset >= XT_INLINE || b->data_offset >= XT_INLINE) continue;
      REQUIRE(!a->packed || !b->packed || a->data_offset + a->packed <= b->data_offset ||
              b->data_offset + b->packed <= a->data_offset);
    }
}

static void read_all(xt_checkpoint *c, const xt_record_reader *reader, size_t file_size, is_content expected) {
  xt_region **whole = read_records(c, reader, file_size, expected);
  check_overlap(c, whole);
  read_views(c, reader, whole, file_size);
  read_batch(c, reader, whole, file_size);
  for (size_t i = 0; i < c->storages.count; i++) xt_region_drop(whole[i]);
  free(whole);
}

/* ---- Opening ---- */

static xt_status open_with(xt_checkpoint *c, const xt_record_reader *reader, xt_error *error) {
  xt_need need = {0, 0, NULL};
  xt_status status;
  while ((status = xt_open_step(c, &need, error)) == XT_STATUS_ok && need.size) {
    REQUIRE((wide)need.offset + need.size <= (wide)c->file_size);
    status = xt_record_reader_fetch(reader, need.offset, need.to, need.size, error);
    REQUIRE(status == XT_STATUS_ok);
  }
  return status;
}

/* Opens bytes that are in memory; reads them if that succeeds. The caller frees the checkpoint in any case. */
static xt_status read_memory(xt_checkpoint *c, const uint8_t *data, size_t size, bool strict, bool verify,
                             is_content expected) {
  xt_error error;
  xt_region memory = {.data = (uint8_t *)(uintptr_t)data, .size = size};
  atomic_init(&memory.references, 1 << 20); /* never freed */
  memset(&error, 0, sizeof error);
  usage u = usage_begin();
  xt_checkpoint_begin(c, size, 0, &limits, strict, verify);
  xt_record_reader reader = {.checkpoint = c, .memory = &memory, .verify = verify};
  xt_status status = open_with(c, &reader, &error);
  usage_check(&u, size, 0);
  if (status != XT_STATUS_ok) {
    if (getenv("FUZZ_SHOW")) fprintf(stderr, "%s: %s\n", xt_status_name(status), error.message);
    REQUIRE(error.message[0] && strlen(error.message) < XT_ERROR_TEXT && error.status == status);
    REQUIRE(status != XT_STATUS_no_memory);
    return status;
  }
  if (c->unpacked) reader.memory = c->memory;
  check_checkpoint(c);
  read_all(c, &reader, size, expected);
  return status;
}

/* The same from a file. */
static void read_file(const uint8_t *data, size_t size, bool strict, bool verify, xt_status expected_status,
                      is_content expected) {
  static int fd = -1;
  static char path[64];
  xt_error error;
  xt_file file;
  xt_checkpoint c;
  if (fd < 0) {
    fd = memfd_create("fuzz", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  }
  REQUIRE(fd >= 0 && !ftruncate(fd, 0) && pwrite(fd, data, size, 0) == (ssize_t)size);
  REQUIRE(xt_file_open(&file, path, &error) == XT_STATUS_ok);
  xt_checkpoint_begin(&c, size, 0, &limits, strict, verify);
  xt_record_reader reader = {.checkpoint = &c, .file = &file, .verify = verify};
  xt_status status = open_with(&c, &reader, &error);
  if (status != expected_status) fprintf(stderr, "%s\n", error.message);
  REQUIRE(status == expected_status);
  if (c.unpacked) reader.memory = c.memory;
  if (status == XT_STATUS_ok) read_all(&c, &reader, size, expected);
  xt_checkpoint_free(&c);
  xt_file_close(&file);
}

/* Everything above for one input. */
static xt_status read_bytes(const uint8_t *data, size_t size, bool strict, bool verify, is_content expected) {
  xt_checkpoint c;
  xt_status status = read_memory(&c, data, size, strict, verify, expected);
  xt_checkpoint_free(&c);
  if (status == XT_STATUS_ok) read_file(data, size, strict, verify, status, expected);
  REQUIRE(!atomic_load(&xt_memory_live.bytes));
  return status;
}

#endif
