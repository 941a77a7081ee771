/* Reads storages, views and ranges of a zip file on disk: large and small ones, compressed ones, views with gaps,
 * damaged data, and with every read and every allocation failing once. By one thread and by several. */
#include "core/checkpoint/readers.h"
#include "core/memory/memory.h"
#include "core/os/background.h"
#include "core/os/clock.h"
#include "core/os/mapping.h"
#include "failing.h"
#include "faults.h"
#include "sample.h"

enum { MIB = 1 << 20, LARGE = 9 * MIB, LARGE_COUNT = 4, PACKED = 100000, LONG_NAME = 300, RECORDS = LARGE_COUNT + 3 };

static char path[4096];
static unsigned readers; /* threads that read */
static xt_drop drop;
static uint8_t *large;
static uint8_t packed[PACKED];
static const char bytes_class[] = "torch\nByteStorage\n", float_class[] = "torch\nFloatStorage\n";

/* Storages 0 to 3 are large, "p" is compressed, "s" small, and "m" has no data. */
static const sample_view views[] = {
    {"whole", "0", bytes_class, LARGE, 0, 1, {LARGE}, {1}},
    {"one", "1", bytes_class, LARGE, 5, 1, {100}, {1}},
    {"two", "2", bytes_class, LARGE, 0, 1, {LARGE}, {1}},
    {"three", "3", bytes_class, LARGE, 0, 1, {LARGE}, {1}},
    /* columns, whose rows are close together, and rows that are far apart */
    {"columns", "0", bytes_class, LARGE, 3, 2, {9000, 10}, {1000, 1}},
    {"rows", "0", bytes_class, LARGE, 7, 2, {8, 20000}, {MIB, 1}},
    {"transposed", "0", bytes_class, LARGE, 3, 2, {10, 9000}, {1, 1000}},
    {"no rows", "0", bytes_class, LARGE, 3, 2, {0, 10}, {1000, 1}},
    {"packed", "p", float_class, PACKED / 4, 2, 1, {1000}, {3}},
    {"small", "s", float_class, 4, 1, 1, {3}, {1}},
};

static void make_file(bool damaged) {
  zip_builder zip = {0};
  xt_pickler p;
  char name[32];
  xt_pickler_begin(&p);
  xt_pickler_put_dict(&p);
  xt_pickler_put_mark(&p);
  for (size_t i = 0; i < COUNT_OF(views); i++) put_view(&p, &views[i], "cpu");
  put_view(&p, &(sample_view){"meta", "m", float_class, 4, 0, 1, {4}, {1}}, "meta");
  xt_pickler_put_set_items(&p);
  xt_pickler_stop(&p);
  zip_add(&zip, "a/data.pkl", p.out.data, p.out.size);
  /* the data of the first storage is aligned, that of the others is not */
  size_t first = zip.out.size + 30 + sizeof "a/pad" - 1 + 30 + sizeof "a/data/0" - 1;
  zip_add(&zip, "a/pad", large, (64 - first % 64) % 64);
  for (int i = 0; i < LARGE_COUNT; i++) {
    snprintf(name, sizeof name, "a/data/%d", i);
    zip_add(&zip, name, large, LARGE);
    if (damaged) zip.out.data[zip.out.size - 1] ^= 1;
  }
  zip_add_with(&zip, "a/data/p", packed, PACKED, ZIP_DEFLATED, 0);
  if (damaged) zip.out.data[zip.out.size - 50] ^= 1;
  zip_add(&zip, "a/data/s", "\0\0\0\0\0\0\x80?\0\0\0@\0\0@@", 16);
  if (damaged) zip.out.data[zip.out.size - 1] ^= 1;
  char long_name[LONG_NAME + 1] = {0};
  memset(long_name, 'x', LONG_NAME);
  memcpy(long_name, "a/", 2);
  zip_add(&zip, long_name, "long", 4);
  zip_finish(&zip);
  FILE *file = fopen(path, "wb");
  CHECK(file && fwrite(zip.out.data, 1, zip.out.size, file) == zip.out.size && !fclose(file));
  zip_free(&zip);
  xt_pickler_free(&p);
}

/* ---- Opening ---- */

typedef struct {
  xt_file file;
  xt_checkpoint checkpoint;
  xt_record_reader reader;
  xt_error error;
} opened;

static xt_status open_file(opened *o, bool verify) {
  xt_need need = {0, 0, NULL};
  memset(o, 0, sizeof *o);
  xt_status status = xt_file_open(&o->file, path, &o->error);
  xt_checkpoint_begin(&o->checkpoint, o->file.size, 0, &sample_limits, false, verify);
  o->reader = (xt_record_reader){
      .checkpoint = &o->checkpoint, .file = &o->file, .verify = verify, .readers = readers, .drop = drop};
  while (status == XT_STATUS_ok && (status = xt_open_step(&o->checkpoint, &need, &o->error)) == XT_STATUS_ok &&
         need.size)
    status = xt_record_reader_fetch(&o->reader, need.offset, need.to, need.size, &o->error);
  return status;
}

static void close_file(opened *o) {
  xt_checkpoint_free(&o->checkpoint);
  xt_file_close(&o->file);
}

/* The expected byte at a position of the storage of a view. */
static const uint8_t *storage_data(const sample_view *view) {
  static const uint8_t small[] = "\0\0\0\0\0\0\x80?\0\0\0@\0\0@@";
  return view->key[0] == 'p' ? packed : view->key[0] == 's' ? small : large;
}

static void compare_view(const sample_view *view, const xt_view *got) {
  int inner = view->ndim - 1;
  size_t item = view->class == float_class ? 4 : 1;
  int64_t rows = inner ? view->sizes[0] : 1, columns = view->sizes[inner];
  bool adjacent = view->strides[inner] == 1 && got->strides[inner] == 1;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t k = 0; k < (adjacent ? 1 : columns); k++) {
      int64_t from = view->offset + (inner ? i * view->strides[0] : 0) + k * view->strides[inner];
      int64_t at = (inner ? i * got->strides[0] : 0) + k * got->strides[inner];
      CHECK(!memcmp(got->data + (size_t)at * item, storage_data(view) + (size_t)from * item,
                    adjacent ? (size_t)columns * item : item));
    }
}

static xt_status read_views(opened *o) {
  xt_view view;
  for (size_t i = 0; i < COUNT_OF(views); i++) {
    xt_status status = xt_record_reader_view(&o->reader, o->checkpoint.index.entries[i].tensor, &view, &o->error);
    if (status != XT_STATUS_ok) return status;
    compare_view(&views[i], &view);
    xt_region_drop(view.region);
  }
  return XT_STATUS_ok;
}

static xt_status load_all(opened *o, uint64_t budget) {
  xt_batch_load load;
  bool finished = false, wanted[RECORDS];
  memset(wanted, 1, sizeof wanted);
  CHECK(o->checkpoint.storages.count == RECORDS);
  xt_status status = xt_batch_load_begin(&load, &o->reader, wanted, &o->error);
  while (status == XT_STATUS_ok && !finished) status = xt_batch_load_step(&load, budget, &finished, &o->error);
  for (size_t i = 0; status == XT_STATUS_ok && i < COUNT_OF(views); i++) {
    const xt_tensor_desc *tensor = o->checkpoint.index.entries[i].tensor;
    xt_view view;
    xt_record_reader_view_region(load.regions[tensor->storage], tensor, &view);
    compare_view(&views[i], &view);
    xt_region_drop(view.region);
  }
  if (status != XT_STATUS_ok && load.failed)
    CHECK(xt_batch_load_step(&load, budget, &finished, &(xt_error){0}) == XT_STATUS_stale);
  xt_batch_load_free(&load);
  return status;
}

/* The background thread and the reaper free what was prefaulted. Both may have to wait for a CPU. */
static void settle_at(uint64_t bytes) {
  xt_background_settle(10000);
  for (int i = 0; i < 10000 && atomic_load(&xt_memory_live.bytes) != (int64_t)bytes; i++) xt_clock_sleep_us(1000);
  CHECK(atomic_load(&xt_memory_live.bytes) == (int64_t)bytes);
}

static void settle(void) { settle_at(0); }

static bool stop(void *context) { return --*(int *)context < 0; }

/* ---- The tests ---- */

static void views_and_storages_are_read(void) {
  make_file(false);
  for (int verify = 0; verify < 2; verify++)
    for (uint64_t budget = MIB; budget <= (uint64_t)1 << 40; budget <<= 20) {
      opened o;
      CHECK(open_file(&o, verify) == XT_STATUS_ok);
      CHECK(read_views(&o) == XT_STATUS_ok && load_all(&o, budget) == XT_STATUS_ok);
      close_file(&o);
    }
  settle();
}

static void mapped_files_are_shared(void) {
  opened o;
  xt_region *mapping;
  CHECK(open_file(&o, false) == XT_STATUS_ok);
  CHECK(xt_region_map(&o.file, &mapping, &o.error) == XT_STATUS_ok);
  o.reader.memory = mapping;
  CHECK(read_views(&o) == XT_STATUS_ok && load_all(&o, MIB) == XT_STATUS_ok);
  xt_region_drop(mapping);
  close_file(&o);
}

static void mapped_files_are_populated(void) {
  opened o;
  xt_region *mapping;
  CHECK(open_file(&o, false) == XT_STATUS_ok);
  CHECK(xt_region_map(&o.file, &mapping, &o.error) == XT_STATUS_ok);
  CHECK(xt_readers_populate(&o.reader, mapping, &o.error) == XT_STATUS_ok);
  o.reader.memory = mapping;
  CHECK(xt_readers_populate(&o.reader, mapping, &o.error) == XT_STATUS_ok && load_all(&o, MIB) == XT_STATUS_ok);
  int calls = 1;
  o.reader.stop = stop;
  o.reader.context = &calls;
  CHECK(xt_readers_populate(&o.reader, mapping, &o.error) == XT_STATUS_stopping);
  o.reader.stop = NULL;
  CHECK(!truncate(path, (off_t)o.file.size / 2));
  CHECK(xt_readers_populate(&o.reader, mapping, &o.error) == XT_STATUS_file_changed);
  xt_region_drop(mapping);
  close_file(&o);
  make_file(false);
}

static void records_are_found_and_read(void) {
  opened o;
  uint8_t bytes[100];
  xt_region *whole;
  CHECK(open_file(&o, false) == XT_STATUS_ok);
  xt_checkpoint *c = &o.checkpoint;
  xt_record *first = xt_checkpoint_find(c, "data/0", 6), *small = xt_checkpoint_find(c, "s", 1),
            *compressed = xt_checkpoint_find(c, "p", 1);
  CHECK(first && first->size == LARGE && small && small->size == 16 && compressed && !xt_checkpoint_find(c, "none", 4));
  CHECK(!xt_checkpoint_find(c, "data/m", 6));
  for (int verify = 0; verify < 2; verify++) {
    o.reader.verify = verify;
    CHECK(xt_record_reader_range(&o.reader, first, 1000, 100, bytes, &o.error) == XT_STATUS_ok);
    CHECK(!memcmp(bytes, large + 1000, 100));
    CHECK(xt_record_reader_range(&o.reader, compressed, PACKED - 10, 10, bytes, &o.error) == XT_STATUS_ok);
    CHECK(!memcmp(bytes, packed + PACKED - 10, 10));
    CHECK(xt_record_reader_range(&o.reader, small, 16, 0, bytes, &o.error) == XT_STATUS_ok);
    CHECK(xt_record_reader_range(&o.reader, small, 16, 1, bytes, &o.error) == XT_STATUS_bad_argument);
    CHECK(xt_record_reader_range(&o.reader, small, 17, 0, bytes, &o.error) == XT_STATUS_bad_argument);
  }
  /* a name longer than the buffer of its header */
  xt_record *last = &c->directory.list[c->directory.count - 1];
  CHECK(last->name_size == LONG_NAME && xt_record_reader_whole(&o.reader, last, &whole, &o.error) == XT_STATUS_ok);
  CHECK(!memcmp(whole->data, "long", 4));
  xt_region_drop(whole);
  xt_range ranges[XT_MAX_RANGES];
  const xt_tensor_desc *one = c->index.entries[1].tensor, *some = c->index.entries[8].tensor;
  o.reader.verify = false;
  uint64_t data;
  CHECK(xt_record_reader_data_offset(&o.reader, c->records[one->storage], &data, &o.error) == XT_STATUS_ok);
  CHECK(xt_record_reader_ranges(&o.reader, one, ranges) == 1);
  CHECK(ranges[0].offset == data + 5 && ranges[0].size == 100);
  CHECK(compressed->data_offset && xt_record_reader_ranges(&o.reader, some, ranges) == 1);
  CHECK(ranges[0].offset == compressed->data_offset && ranges[0].size == compressed->packed);
  close_file(&o);
}

/* A record that was not located needs its header too, and its data may begin later than right after that. */
static void ranges_of_records(void) {
  opened o;
  xt_range before[XT_MAX_RANGES], after[XT_MAX_RANGES];
  CHECK(open_file(&o, false) == XT_STATUS_ok);
  const xt_checkpoint *c = &o.checkpoint;
  for (size_t i = 0; i < COUNT_OF(views); i++) {
    const xt_tensor_desc *tensor = c->index.entries[i].tensor;
    xt_record *record = c->records[tensor->storage];
    size_t records = xt_record_reader_record_ranges(&o.reader, record, before);
    uint64_t data;
    CHECK(atomic_load(&record->data_offset) || (records && before[0].offset <= record->header));
    size_t tensors = xt_record_reader_ranges(&o.reader, tensor, before);
    CHECK(xt_record_reader_data_offset(&o.reader, record, &data, &o.error) == XT_STATUS_ok);
    CHECK(xt_record_reader_record_ranges(&o.reader, record, after) == 1);
    CHECK(after[0].offset == data && after[0].size == record->packed);
    if (views[i].sizes[0] == 0) {
      CHECK(tensors == 0 && xt_record_reader_ranges(&o.reader, tensor, after) == 0);
      continue;
    }
    /* what is read is inside of what was listed before the record was located */
    CHECK(tensors && xt_record_reader_ranges(&o.reader, tensor, after) == 1);
    const xt_range *last = &before[tensors - 1];
    CHECK(last->offset <= after[0].offset && after[0].offset + after[0].size <= last->offset + last->size);
  }
  close_file(&o);
}

static void a_meta_tensor_has_no_data(void) {
  opened o;
  xt_view view;
  CHECK(open_file(&o, false) == XT_STATUS_ok);
  const xt_tensor_desc *meta = o.checkpoint.index.entries[COUNT_OF(views)].tensor;
  CHECK(xt_record_reader_view(&o.reader, meta, &view, &o.error) == XT_STATUS_unsupported);
  CHECK(strstr(o.error.message, "meta"));
  close_file(&o);
}

static void damage_is_found(void) {
  xt_view view;
  make_file(true);
  opened o;
  CHECK(open_file(&o, true) == XT_STATUS_ok);
  for (size_t i = 0; i < COUNT_OF(views); i++) {
    if (views[i].sizes[0] == 0) continue; /* needs no bytes */
    CHECK(xt_record_reader_view(&o.reader, o.checkpoint.index.entries[i].tensor, &view, &o.error) == XT_STATUS_corrupt);
    CHECK(strstr(o.error.message, "download the file again"));
  }
  bool finished, wanted[RECORDS];
  for (int storage = 0; storage < RECORDS; storage++) {
    if (!o.checkpoint.records[storage]) continue;
    for (int i = 0; i < RECORDS; i++) wanted[i] = i == storage;
    xt_batch_load load;
    CHECK(xt_batch_load_begin(&load, &o.reader, wanted, &o.error) == XT_STATUS_ok);
    CHECK(xt_batch_load_step(&load, UINT64_MAX / 2, &finished, &o.error) == XT_STATUS_corrupt && !finished);
    xt_batch_load_free(&load);
  }
  close_file(&o);
  make_file(false);
}

/* In memory: from the file's bytes, also when some of them are missing. */
static void bytes_that_are_missing_are_an_error(void) {
  opened o;
  size_t size;
  uint8_t *data = read_whole_file(path, 0, &size);
  CHECK(open_file(&o, false) == XT_STATUS_ok);
  xt_region memory = {.data = data, .size = 1000};
  atomic_init(&memory.references, 1 << 20);
  o.reader.memory = &memory;
  uint8_t byte;
  CHECK(xt_record_reader_fetch(&o.reader, 999, &byte, 1, &o.error) == XT_STATUS_ok && byte == data[999]);
  CHECK(xt_record_reader_fetch(&o.reader, 1000, &byte, 1, &o.error) == XT_STATUS_truncated);
  CHECK(load_all(&o, MIB) == XT_STATUS_truncated);
  xt_record *first = xt_checkpoint_find(&o.checkpoint, "data/0", 6);
  memory.size = first->header + 100; /* the header of the record, and a part of its data */
  CHECK(load_all(&o, MIB) == XT_STATUS_truncated);
  close_file(&o);
  free(data);
}

/* The header of a record differs from the directory: of a small, a compressed and a large storage. */
static void wrong_headers_are_found(void) {
  size_t size;
  uint8_t *data = read_whole_file(path, 0, &size);
  opened o;
  CHECK(open_file(&o, false) == XT_STATUS_ok);
  static const char *const keys[] = {"s", "p", "0"};
  uint64_t headers[3];
  for (int i = 0; i < 3; i++) headers[i] = xt_checkpoint_find(&o.checkpoint, keys[i], 1)->header;
  close_file(&o);
  for (int i = 0; i < 3; i++) {
    data[headers[i] + 8] ^= 1; /* the method */
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(data, 1, size, file) == size && !fclose(file));
    CHECK(open_file(&o, false) == XT_STATUS_ok);
    CHECK(load_all(&o, MIB) == XT_STATUS_corrupt && strstr(o.error.message, "different method"));
    close_file(&o);
    data[headers[i] + 8] ^= 1;
  }
  free(data);
  make_file(false);
}

static void the_caller_can_stop_a_read(void) {
  opened o;
  CHECK(open_file(&o, false) == XT_STATUS_ok);
  int reads = 10;
  o.reader.stop = stop;
  o.reader.context = &reads;
  CHECK(load_all(&o, UINT64_MAX / 2) == XT_STATUS_stopping && strstr(o.error.message, "stopped"));
  close_file(&o);
  settle();
}

/* The error of the first damaged storage, in file order, whichever thread finds its own first. */
static void the_first_error_is_returned(void) {
  opened o;
  make_file(true);
  for (int i = 0; i < 20; i++) {
    CHECK(open_file(&o, true) == XT_STATUS_ok);
    CHECK(load_all(&o, UINT64_MAX / 2) == XT_STATUS_corrupt && strstr(o.error.message, "data/0 is damaged"));
    close_file(&o);
  }
  make_file(false);
  settle();
}

static void a_file_that_is_truncated_while_it_is_read(void) {
  opened o;
  CHECK(open_file(&o, false) == XT_STATUS_ok);
  CHECK(!truncate(path, (off_t)o.file.size / 2));
  CHECK(load_all(&o, UINT64_MAX / 2) == XT_STATUS_file_changed && strstr(o.error.message, "has changed"));
  CHECK(read_views(&o) == XT_STATUS_file_changed);
  close_file(&o);
  make_file(false);
  settle();
}

/* What was not written to the disk stays in the cache. */
static void uncache(const xt_file *file) {
  CHECK(!__real_fsync(file->fd));
  xt_file_uncache(file, 0, file->size);
}

/* Whether pages are in the cache changes only the time. */
static void pages_that_are_not_cached_are_read(void) {
  opened o;
  for (drop = XT_DROP_NOTHING; drop <= XT_DROP_IF_LARGE; drop++)
    for (int verify = 0; verify < 2; verify++) {
      CHECK(open_file(&o, verify) == XT_STATUS_ok);
      uncache(&o.file);
      CHECK(load_all(&o, 16 * MIB) == XT_STATUS_ok && read_views(&o) == XT_STATUS_ok);
      xt_file_prefetch(&o.file, 0, o.file.size);
      close_file(&o);
    }
  drop = XT_DROP_NOTHING;
  xt_memory_set_budget(60 * MIB); /* half of it is less than the load */
  drop = XT_DROP_IF_LARGE;
  CHECK(open_file(&o, false) == XT_STATUS_ok);
  uncache(&o.file);
  CHECK(load_all(&o, 16 * MIB) == XT_STATUS_ok);
  close_file(&o);
  drop = XT_DROP_NOTHING;
  xt_memory_set_budget(INT64_MAX);
  settle();
}

/* A read past the cache that fails is tried again through it. */
static void failing_reads_past_the_cache(void) {
  opened o;
  drop = XT_DROP_ALWAYS;
  CHECK(open_file(&o, true) == XT_STATUS_ok);
  for (long at = 0; at < 60; at += 3) {
    uncache(&o.file);
    fault_calls = 0, fault_at = at;
    xt_status status = load_all(&o, UINT64_MAX / 2);
    fault_at = -1;
    CHECK(status == XT_STATUS_ok || status == (strcmp(fault_call, "mmap") ? XT_STATUS_io : XT_STATUS_no_memory));
  }
  int reads = 0; /* helpers read most of it, and do not ask */
  uncache(&o.file);
  o.reader.stop = stop;
  o.reader.context = &reads;
  CHECK(load_all(&o, UINT64_MAX / 2) == XT_STATUS_stopping);
  close_file(&o);
  drop = XT_DROP_NOTHING;
  settle();
}

static void the_budget_limits_a_load(void) {
  opened o;
  CHECK(open_file(&o, false) == XT_STATUS_ok);
  for (int64_t budget = 1000; budget <= 40 * MIB; budget = budget < MIB ? MIB : budget + 10 * MIB) {
    xt_memory_set_budget(budget);
    CHECK(load_all(&o, MIB) == XT_STATUS_limit && o.error.collect && strstr(o.error.message, "budget"));
    settle_at(o.checkpoint.allowance.used);
  }
  xt_memory_set_budget(INT64_MAX);
  close_file(&o);
}

/* A range of every record, of which one has a name longer than the buffer of its header. */
static xt_status read_records(opened *o) {
  xt_status status = XT_STATUS_ok;
  uint8_t bytes[4];
  for (int verify = 0; verify < 2; verify++) {
    o->reader.verify = verify;
    for (size_t i = 0; i < o->checkpoint.directory.count && status == XT_STATUS_ok; i++)
      status = xt_record_reader_range(&o->reader, &o->checkpoint.directory.list[i], 0, 4, bytes, &o->error);
  }
  return status;
}

static xt_status open_and_read(bool verify) {
  opened o;
  xt_status status = open_file(&o, verify);
  if (status == XT_STATUS_ok) status = read_views(&o);
  if (status == XT_STATUS_ok) status = load_all(&o, 16 * MIB);
  if (status == XT_STATUS_ok) status = read_records(&o);
  if (status != XT_STATUS_ok) CHECK(o.error.message[0]);
  close_file(&o);
  return status;
}

/* Most calls read one piece of a large storage after the other: every seventh of these is enough. */
static long next(long at) { return at < 100 ? at + 1 : at + 7; }

static void every_failing_read_is_an_error(void) {
  for (fault_at = 0;; fault_at = next(fault_at)) {
    fault_calls = 0;
    xt_status status = open_and_read(false);
    bool failed = fault_calls > fault_at;
    if (!failed) CHECK(status == XT_STATUS_ok);
    /* mmap and threads have other ways */
    else if (!strcmp(fault_call, "pread") || !strcmp(fault_call, "open") || !strcmp(fault_call, "fstat"))
      CHECK(status == XT_STATUS_io);
    if (!failed) break;
  }
  fault_at = -1;
  settle();
}

static void short_and_interrupted_reads_are_continued(void) {
  short_io = 100000, interrupts = 50;
  CHECK(open_and_read(true) == XT_STATUS_ok && interrupts == 0);
  short_io = 0;
  settle();
}

static void every_failing_allocation_is_an_error(void) {
  for (long at = 0;; at++) {
    allocations = 0, fail_at = at, fail_arenas = true;
    xt_status status = open_and_read(false);
    fail_at = -1, fail_arenas = false;
    if (allocations <= at) {
      CHECK(status == XT_STATUS_ok);
      break;
    }
    CHECK(status == XT_STATUS_no_memory || status == XT_STATUS_ok);
  }
  settle();
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  snprintf(path, sizeof path, "%.4000s/read_test.pt", argv[1]);
  large = malloc(LARGE);
  CHECK(large);
  for (int i = 0; i < LARGE; i++) large[i] = (uint8_t)(i * 31 + i / 1000);
  for (int i = 0; i < PACKED; i++) packed[i] = (uint8_t)((unsigned)i * (unsigned)i / 77 + (unsigned)i / 3);
  int status = 0;
  for (readers = 0; readers <= 4; readers += 4)
    status |= RUN_TESTS(readers ? "read by four threads" : "read", views_and_storages_are_read, mapped_files_are_shared,
                        mapped_files_are_populated, records_are_found_and_read, ranges_of_records,
                        a_meta_tensor_has_no_data, damage_is_found, wrong_headers_are_found,
                        bytes_that_are_missing_are_an_error, the_caller_can_stop_a_read, the_first_error_is_returned,
                        a_file_that_is_truncated_while_it_is_read, pages_that_are_not_cached_are_read,
                        failing_reads_past_the_cache, the_budget_limits_a_load, every_failing_read_is_an_error,
                        short_and_interrupted_reads_are_continued, every_failing_allocation_is_an_error);
  free(large);
  unlink(path);
  return status;
}
