/* Opens and reads every file given as an argument: unchanged, truncated at every length, with every bit flipped, and
 * with every allocation and every read failing once. Nothing may crash, hang or leak. A flipped bit of a record with a
 * checksum is an error if checksums are verified.
 *
 * Bits are flipped in files up to 6,000 bytes; with EXTORCH_SWEEP set, in files up to 64 KiB. */
#include <string.h>

#include "check.h"
#include "core/checkpoint/batch_load.h"
#include "core/formats/open.h"
#include "core/memory/memory.h"
#include "failing.h"
#include "faults.h"

static const xt_limits limits = {.pickle_bytes = 64 << 20, .depth = 1000, .tensor_bytes = (uint64_t)1 << 40};
static size_t truncated_files, truncations, flips, checked_flips, failed_allocations, failed_reads;

static xt_status open_all(xt_checkpoint *c, xt_record_reader *reader, xt_error *error) {
  xt_need need = {0, 0, NULL};
  xt_status status;
  while ((status = xt_open_step(c, &need, error)) == XT_STATUS_ok && need.size) {
    status = xt_record_reader_fetch(reader, need.offset, need.to, need.size, error);
    if (status != XT_STATUS_ok) break;
  }
  return status;
}

/* Reads every element of a tensor, so that the sanitizer reports a view that exceeds its storage. */
static unsigned touch(const xt_tensor_desc *t, const xt_view *view) {
  int64_t index[64] = {0}, elements = 1;
  unsigned sum = 0;
  size_t item = xt_dtype_get(t->dtype)->size;
  for (uint32_t d = 0; d < t->ndim; d++) elements *= t->sizes[d];
  for (int64_t remaining = elements < 100000 ? elements : 100000; remaining-- > 0;) {
    int64_t at = 0;
    for (uint32_t d = 0; d < t->ndim; d++) at += index[d] * view->strides[d];
    for (size_t i = 0; i < item; i++) sum += view->data[(size_t)at * item + i];
    for (uint32_t d = t->ndim; d-- > 0 && ++index[d] == t->sizes[d];) index[d] = 0;
  }
  return sum;
}

static xt_status read_all(xt_checkpoint *c, const xt_record_reader *reader, xt_error *error) {
  xt_batch_load load;
  xt_view view;
  bool finished = false;
  xt_status status = XT_STATUS_ok;
  bool *wanted = calloc(c->storages.count + 1, 1);
  if (!wanted) return XT_STATUS_no_memory;
  memset(wanted, 1, c->storages.count);
  for (size_t i = 0; i < c->index.count && status == XT_STATUS_ok; i++) {
    const xt_tensor_desc *t = c->index.entries[i].tensor;
    if (t->storage == XT_NO_STORAGE || !c->records[t->storage]) continue;
    status = xt_record_reader_view(reader, t, &view, error);
    if (status == XT_STATUS_ok) touch(t, &view), xt_region_drop(view.region);
  }
  if (status == XT_STATUS_ok) status = xt_batch_load_begin(&load, reader, wanted, error);
  else memset(&load, 0, sizeof load);
  while (status == XT_STATUS_ok && !finished) status = xt_batch_load_step(&load, 1000, &finished, error);
  for (size_t i = 0; i < c->index.count && status == XT_STATUS_ok; i++) {
    const xt_tensor_desc *t = c->index.entries[i].tensor;
    if (t->storage == XT_NO_STORAGE || !c->records[t->storage]) continue;
    xt_record_reader_view_region(load.regions[t->storage], t, &view);
    touch(t, &view);
    xt_region_drop(view.region);
  }
  xt_batch_load_free(&load);
  free(wanted);
  return status;
}

static xt_status try_bytes(const uint8_t *data, size_t size, bool verify, xt_error *error) {
  xt_checkpoint c;
  /* A copy of exactly this size, so that the sanitizer reports a read past its end. */
  uint8_t *exact = __real_malloc(size ? size : 1);
  memcpy(exact, data, size);
  xt_region memory = {.data = exact, .size = size};
  atomic_init(&memory.references, 1 << 20); /* never freed */
  memset(error, 0, sizeof *error);
  xt_checkpoint_begin(&c, size, 0, &limits, false, verify);
  xt_record_reader reader = {.checkpoint = &c, .memory = &memory, .verify = verify};
  xt_status status = open_all(&c, &reader, error);
  if (c.unpacked) reader.memory = c.memory;
  if (status == XT_STATUS_ok) status = read_all(&c, &reader, error);
  xt_checkpoint_free(&c);
  free(exact);
  if (status != XT_STATUS_ok) CHECK(error->message[0] || status == XT_STATUS_no_memory);
  return status;
}

static void reads_whole(const char *path, const uint8_t *data, size_t size) {
  xt_error error;
  xt_status status = try_bytes(data, size, true, &error);
  if (status != XT_STATUS_ok) fprintf(stderr, "%s: %s\n", path, error.message);
  CHECK(status == XT_STATUS_ok);
}

/* Reads the file with pread. */
static xt_status try_file(const char *path, xt_error *error) {
  xt_file file;
  xt_checkpoint c;
  memset(error, 0, sizeof *error);
  xt_status status = xt_file_open(&file, path, error);
  xt_checkpoint_begin(&c, status == XT_STATUS_ok ? file.size : 0, 0, &limits, false, true);
  xt_record_reader reader = {.checkpoint = &c, .file = &file, .verify = true};
  if (status == XT_STATUS_ok) status = open_all(&c, &reader, error);
  if (c.unpacked) reader.memory = c.memory;
  if (status == XT_STATUS_ok) status = read_all(&c, &reader, error);
  if (status == XT_STATUS_ok) status = xt_file_check(&file, error);
  reader.verify = false;
  if (status == XT_STATUS_ok) status = read_all(&c, &reader, error);
  xt_checkpoint_free(&c);
  xt_file_close(&file);
  return status;
}

static void survives_every_failed_read(const char *path) {
  xt_error error;
  for (fault_at = 0;; fault_at++, failed_reads++) {
    fault_calls = 0;
    xt_status status = try_file(path, &error);
    if (fault_calls <= fault_at) {
      CHECK(status == XT_STATUS_ok);
      break;
    }
    /* memory that cannot be mapped with huge pages is taken from malloc, or refused */
    bool mapping = !strcmp(fault_call, "mmap");
    CHECK(status == XT_STATUS_io || (mapping && (status == XT_STATUS_no_memory || status == XT_STATUS_ok)));
    CHECK(status == XT_STATUS_ok || error.message[0]);
  }
  fault_at = -1;
  short_io = 1000, interrupts = 10;
  CHECK(try_file(path, &error) == XT_STATUS_ok);
  short_io = 0, interrupts = 0;
}

static void refuses_every_truncation(const char *path, const uint8_t *data, size_t size) {
  xt_error error;
  /* The first of several saves is complete without the others, and a tar file without its padding. */
  bool may_end_early = strstr(path, "several") || strstr(path, "tar.pt");
  for (size_t cut = 0; cut < size; cut++) {
    xt_status status = try_bytes(data, cut, false, &error);
    CHECK(status != XT_STATUS_ok || may_end_early);
    truncations += !may_end_early;
  }
  truncated_files += !may_end_early;
}

/* Sets *checked to one flag per byte: whether it belongs to a record that is read and has a checksum. Compressed data
 * may end in bits without meaning. */
static void find_checked(const uint8_t *data, size_t size, bool *checked) {
  xt_error error;
  xt_checkpoint c;
  xt_region memory = {.data = (uint8_t *)(uintptr_t)data, .size = size};
  atomic_init(&memory.references, 1 << 20);
  xt_checkpoint_begin(&c, size, 0, &limits, false, true);
  xt_record_reader reader = {.checkpoint = &c, .memory = &memory, .verify = true};
  CHECK(open_all(&c, &reader, &error) == XT_STATUS_ok);
  if (c.unpacked) reader.memory = c.memory;
  CHECK(read_all(&c, &reader, &error) == XT_STATUS_ok);
  for (size_t i = 0; i < c.directory.count && !c.unpacked; i++) {
    const xt_record *record = &c.directory.list[i];
    if (record->has_crc && record->data_offset && record->method == XT_RECORD_STORED)
      memset(checked + record->data_offset, 1, record->packed);
  }
  xt_checkpoint_free(&c);
}

static void survives_every_flipped_bit(uint8_t *data, size_t size) {
  xt_error error;
  bool *checked = calloc(size + 1, sizeof *checked);
  find_checked(data, size, checked);
  for (size_t bit = 0; bit < 8 * size; bit++, flips++) {
    data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    xt_status status = try_bytes(data, size, checked[bit / 8] || bit % 2, &error);
    CHECK(status != XT_STATUS_ok || !checked[bit / 8]);
    data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    checked_flips += checked[bit / 8];
  }
  free(checked);
}

/* In a small file, also every allocation from an arena. */
static void survives_every_failed_allocation(const uint8_t *data, size_t size) {
  xt_error error;
  fail_arenas = size <= 16 << 10;
  for (fail_at = 0;; fail_at++) {
    allocations = 0;
    xt_status status = try_bytes(data, size, false, &error);
    if (allocations <= fail_at) {
      CHECK(status == XT_STATUS_ok);
      break;
    }
    /* The name of a part without tensors is not needed. */
    CHECK(status == XT_STATUS_no_memory || status == XT_STATUS_ok);
    failed_allocations++;
  }
  fail_at = -1;
  fail_arenas = false;
}

static void test_file(const char *path) {
  size_t size;
  uint8_t *data = read_whole_file(path, 0, &size);
  reads_whole(path, data, size);
  if (size <= 64 << 10) refuses_every_truncation(path, data, size);
  if (size <= (getenv("EXTORCH_SWEEP") ? 64 << 10 : 6000)) survives_every_flipped_bit(data, size);
  survives_every_failed_allocation(data, size);
  survives_every_failed_read(path);
  CHECK(atomic_load(&xt_memory_live.bytes) == 0);
  free(data);
}

int main(int argc, char **argv) {
  int status = run_test_for_each("open", test_file, argc - 1, argv + 1);
  print_figure("truncated_files", truncated_files);
  print_figure("truncations", truncations);
  print_figure("flips", flips);
  print_figure("checked_flips", checked_flips);
  print_figure("failed_allocations", failed_allocations);
  print_figure("failed_reads", failed_reads);
  return status;
}
