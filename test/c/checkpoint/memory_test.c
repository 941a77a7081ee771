/* Files that need more memory than they may take, and files whose bytes the caller reads. */
#include "core/memory/memory.h"
#include "sample.h"

enum { LARGE = 3 << 20, NAMES = 300 };

static const char float_class[] = "torch\nFloatStorage\n", bytes_class[] = "torch\nByteStorage\n";
static const sample_view views[] = {
    {"large", "l", bytes_class, LARGE, 0, 1, {LARGE}, {1}}, {"packed", "p", bytes_class, 5000, 0, 1, {5000}, {1}},
    {"small", "s", float_class, 4, 1, 1, {3}, {1}},         {"next", "n", float_class, 4, 0, 1, {4}, {1}},
    {"empty", "e", float_class, 0, 0, 1, {0}, {1}},
};
static uint8_t bytes[LARGE];

static void make_zip(zip_builder *zip) {
  xt_pickler p;
  memset(zip, 0, sizeof *zip);
  for (size_t i = 0; i < LARGE; i++) bytes[i] = (uint8_t)(i * 7 + i / 1000);
  put_views(&p, views, COUNT_OF(views));
  zip_add(zip, "a/data.pkl", p.out.data, p.out.size);
  zip_add(zip, "a/data/l", bytes, LARGE);
  zip_add_with(zip, "a/data/p", bytes, 5000, ZIP_DEFLATED, 0);
  zip_add(zip, "a/data/s", "0123456789abcdef", 16);
  zip_add(zip, "a/data/n", "fedcba9876543210", 16);
  zip_add(zip, "a/data/e", "", 0);
  zip_finish(zip);
  xt_pickler_free(&p);
}

/* ---- Bytes that the caller reads ---- */

static void begin(sample *s, xt_batch_load *load) {
  bool wanted[COUNT_OF(views)];
  memset(wanted, 1, sizeof wanted);
  xt_record_reader reader = {.checkpoint = &s->checkpoint, .verify = true};
  CHECK(s->checkpoint.storages.count == COUNT_OF(views));
  CHECK(xt_batch_load_begin(load, &reader, wanted, &s->error) == XT_STATUS_ok);
}

static xt_status fill(sample *s, xt_batch_load *load, const uint8_t *file) {
  xt_need need;
  xt_status status;
  while ((status = xt_batch_load_need(load, &need, &s->error)) == XT_STATUS_ok && need.size) {
    CHECK(need.offset + need.size <= s->memory.size);
    xt_region *region = xt_region_new(need.size, 0);
    CHECK(region);
    memcpy(region->data, file + need.offset, need.size);
    status = xt_batch_load_fill(load, region, &s->error);
    xt_region_drop(region);
    if (status != XT_STATUS_ok) break;
  }
  return status;
}

static void a_load_asks_for_its_bytes(void) {
  zip_builder zip;
  sample s;
  xt_batch_load load, expected;
  make_zip(&zip);
  CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok && sample_load(&s, &expected) == XT_STATUS_ok);
  for (int known = 0; known < 2; known++) { /* the second time, the offsets of the data are known */
    if (!known) {
      sample_free(&s);
      CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
    }
    begin(&s, &load);
    CHECK(fill(&s, &load, zip.out.data) == XT_STATUS_ok && load.done == load.total);
    for (size_t i = 0; i < COUNT_OF(views); i++) {
      size_t size = s.checkpoint.storages.list[i].bytes; /* the region of an empty storage may have a byte */
      CHECK(load.regions[i]->size >= size && expected.regions[i]->size >= size);
      CHECK(!memcmp(load.regions[i]->data, expected.regions[i]->data, size));
    }
    xt_batch_load_free(&load);
  }
  xt_batch_load_free(&expected);
  sample_free(&s);
  zip_free(&zip);
}

static bool always(void *context) { return context != NULL; }

static void a_load_that_gets_wrong_bytes_fails(void) {
  zip_builder zip;
  sample s;
  xt_batch_load load;
  xt_need need;
  xt_region region = {.data = bytes, .size = 1};
  make_zip(&zip);
  uint8_t *damaged = malloc(zip.out.size);
  memcpy(damaged, zip.out.data, zip.out.size);
  for (size_t i = 0; i + 16 < zip.out.size; i++)
    if (!memcmp(damaged + i, "fedcba98", 8)) damaged[i] ^= 1;
  CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
  begin(&s, &load);
  CHECK(xt_batch_load_need(&load, &need, &s.error) == XT_STATUS_ok);
  CHECK(xt_batch_load_fill(&load, &region, &s.error) == XT_STATUS_io && strstr(s.error.message, "expected"));
  CHECK(fill(&s, &load, damaged) == XT_STATUS_corrupt && strstr(s.error.message, "checksum"));
  CHECK(xt_batch_load_fill(&load, &region, &s.error) == XT_STATUS_stale);
  xt_batch_load_free(&load);

  begin(&s, &load);
  load.reader.stop = always;
  load.reader.context = &load;
  CHECK(fill(&s, &load, zip.out.data) == XT_STATUS_stopping);
  xt_batch_load_free(&load);

  begin(&s, &load);
  xt_memory_set_budget(atomic_load(&xt_memory_live.bytes) + LARGE + 4096); /* the packed storage has 5,000 bytes */
  CHECK(fill(&s, &load, zip.out.data) == XT_STATUS_limit && s.error.collect);
  xt_memory_set_budget(INT64_MAX);
  xt_batch_load_free(&load);
  sample_free(&s);
  zip_free(&zip);
  free(damaged);
}

/* A storage of more than 32 MiB is read in pieces, a smaller one at once, and the ranges are announced. */
static void a_large_storage_is_read_in_pieces(void) {
  enum { HUGE = (36 << 20) + 12, WHOLE = 9 << 20 };
  zip_builder zip = {0};
  xt_pickler p;
  sample s;
  xt_batch_load load;
  xt_need need, ahead[8];
  bool wanted[3] = {true, true, true};
  uint8_t *data = malloc(HUGE);
  const sample_view three[] = {{"x", "x", bytes_class, HUGE, 0, 1, {HUGE}, {1}},
                               {"s", "s", bytes_class, 16, 0, 1, {16}, {1}},
                               {"w", "w", bytes_class, WHOLE, 0, 1, {WHOLE}, {1}}};
  for (size_t i = 0; i < HUGE; i++) data[i] = (uint8_t)(i * 31 >> 3);
  put_views(&p, three, 3);
  zip_add(&zip, "a/data.pkl", p.out.data, p.out.size);
  zip_add(&zip, "a/data/x", data, HUGE);
  zip_add(&zip, "a/data/s", "0123456789abcdef", 16);
  zip_add(&zip, "a/data/w", data, WHOLE);
  zip_finish(&zip);
  CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
  xt_record_reader reader = {.checkpoint = &s.checkpoint, .verify = true};
  for (int known = 0; known < 2; known++) { /* the second time, the offset of the data is known */
    CHECK(xt_batch_load_begin(&load, &reader, wanted, &s.error) == XT_STATUS_ok);
    CHECK(xt_batch_load_ahead(&load, ahead, 8) == 0); /* before the first need */
    size_t needs = 0, predicted = 0, listed = 0;
    while (xt_batch_load_need(&load, &need, &s.error) == XT_STATUS_ok && need.size) {
      CHECK(need.size <= (9 << 20) + 256 && need.offset + need.size <= zip.out.size);
      for (size_t i = 0; i < listed; i++)
        if (ahead[i].offset == need.offset && ahead[i].size >= need.size) predicted++;
      listed = xt_batch_load_ahead(&load, ahead, 8);
      CHECK(xt_batch_load_ahead(&load, ahead, 1) == (listed ? 1 : 0));
      CHECK(xt_batch_load_ahead(&load, ahead, 8) == listed);
      xt_region *region = xt_region_new(need.size, 0);
      memcpy(region->data, zip.out.data + need.offset, need.size);
      CHECK(xt_batch_load_fill(&load, region, &s.error) == XT_STATUS_ok);
      xt_region_drop(region);
      needs++;
    }
    CHECK(needs == 7 && predicted == 6 && load.done == load.total);
    CHECK(!memcmp(load.regions[0]->data, data, HUGE) && !memcmp(load.regions[1]->data, "0123456789abcdef", 16));
    CHECK(!memcmp(load.regions[2]->data, data, WHOLE));
    CHECK(xt_batch_load_ahead(&load, ahead, 8) == 0);
    xt_batch_load_free(&load);
  }
  /* the budget has room for the first piece, but not for the storage */
  CHECK(xt_batch_load_begin(&load, &reader, wanted, &s.error) == XT_STATUS_ok);
  CHECK(xt_batch_load_need(&load, &need, &s.error) == XT_STATUS_ok);
  xt_region *piece = xt_region_new(need.size, 0);
  memcpy(piece->data, zip.out.data + need.offset, need.size);
  xt_memory_set_budget(atomic_load(&xt_memory_live.bytes));
  CHECK(xt_batch_load_fill(&load, piece, &s.error) == XT_STATUS_limit && strstr(s.error.message, "budget"));
  xt_memory_set_budget(INT64_MAX);
  xt_region_drop(piece);
  xt_batch_load_free(&load);
  sample_free(&s);
  zip_free(&zip);
  xt_pickler_free(&p);
  free(data);
}

/* A tensor that needs little of a compressed storage does not keep all of it. */
static void a_small_view_of_a_compressed_storage_is_a_copy(void) {
  static const sample_view part[] = {{"x", "x", bytes_class, 5000, 200, 1, {100}, {1}}};
  zip_builder zip = {0};
  xt_pickler p;
  sample s;
  xt_view view;
  put_views(&p, part, 1);
  zip_add(&zip, "a/data.pkl", p.out.data, p.out.size);
  zip_add_with(&zip, "a/data/x", bytes, 5000, ZIP_DEFLATED, 0);
  zip_finish(&zip);
  CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
  const xt_tensor_desc *t = s.checkpoint.index.entries[0].tensor;
  xt_record_reader reader = {.checkpoint = &s.checkpoint, .memory = &s.memory};
  int64_t live = atomic_load(&xt_memory_live.bytes);
  CHECK(xt_record_reader_view(&reader, t, &view, &s.error) == XT_STATUS_ok);
  CHECK(view.region->size == 100 && view.data == view.region->data && !memcmp(view.data, bytes + 200, 100));
  CHECK(atomic_load(&xt_memory_live.bytes) < live + 5000);
  xt_region_drop(view.region);
  xt_memory_set_budget(live + 5000); /* for the storage, but not for the copy */
  CHECK(xt_record_reader_view(&reader, t, &view, &s.error) == XT_STATUS_limit && !view.region);
  xt_memory_set_budget(INT64_MAX);
  CHECK(atomic_load(&xt_memory_live.bytes) == live);
  sample_free(&s);
  zip_free(&zip);
  xt_pickler_free(&p);
}

/* A compressed storage with elements but without a byte in the file, whose header was read before. */
static void a_storage_without_bytes_is_refused(void) {
  static const sample_view view = {"w", "w", "torch\nFloatStorage\n", 4, 0, 1, {4}, {1}};
  zip_builder zip = {0};
  xt_pickler p;
  sample s;
  xt_batch_load load;
  xt_need need;
  bool wanted = true;
  put_views(&p, &view, 1);
  zip_add(&zip, "a/data.pkl", p.out.data, p.out.size);
  size_t header = zip.out.size, entry = zip.central.size;
  zip_add(&zip, "a/data/w", "", 0);
  for (int central = 0; central < 2; central++) {
    uint8_t *at = central ? zip.central.data + entry + 10 : zip.out.data + header + 8;
    at[0] = ZIP_DEFLATED; /* the method */
    at[14] = 16;          /* the size */
  }
  zip_finish(&zip);
  CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
  uint64_t data;
  CHECK(xt_record_reader_data_offset(&s.reader, s.checkpoint.records[0], &data, &s.error) == XT_STATUS_ok);
  xt_record_reader reader = {.checkpoint = &s.checkpoint};
  CHECK(xt_batch_load_begin(&load, &reader, &wanted, &s.error) == XT_STATUS_ok);
  CHECK(xt_batch_load_need(&load, &need, &s.error) == XT_STATUS_corrupt && load.failed);
  CHECK(strstr(s.error.message, "a storage with data has no bytes in the file"));
  xt_batch_load_free(&load);
  sample_free(&s);
  zip_free(&zip);
  xt_pickler_free(&p);
}

/* An empty storage alone needs no bytes, but a little memory. */
static void an_empty_storage_needs_memory(void) {
  zip_builder zip = {0};
  xt_pickler p;
  sample s;
  xt_batch_load load;
  xt_need need;
  bool wanted = true;
  put_views(&p, &views[4], 1);
  zip_add(&zip, "a/data.pkl", p.out.data, p.out.size);
  zip_add(&zip, "a/data/e", "", 0);
  zip_finish(&zip);
  CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
  xt_record_reader reader = {.checkpoint = &s.checkpoint};
  CHECK(xt_batch_load_begin(&load, &reader, &wanted, &s.error) == XT_STATUS_ok);
  xt_memory_set_budget(0);
  CHECK(xt_batch_load_need(&load, &need, &s.error) == XT_STATUS_limit);
  xt_memory_set_budget(INT64_MAX);
  xt_batch_load_free(&load);
  sample_free(&s);
  zip_free(&zip);
  xt_pickler_free(&p);
}

/* ---- Limits ---- */

/* A dict of many texts, lists and references, which needs all tables and buffers. */
static void make_metadata(xt_buffer *out) {
  memset(out, 0, sizeof *out);
  xt_buffer_put(out, "\x80\2}(", 4);
  for (int i = 0; i < NAMES; i++) {
    char name[100];
    int size = snprintf(name, sizeof name, "name %d", i);
    xt_buffer_byte(out, 'X');
    xt_buffer_le(out, (uint64_t)size, 4);
    xt_buffer_put(out, name, (size_t)size);
    xt_buffer_put(out, "r", 1);
    xt_buffer_le(out, (uint64_t)i * 7, 4);
    xt_buffer_put(out, "](K\1K\2M\1\2e", 10);
  }
  xt_buffer_put(out, "u.", 2);
  CHECK(!out->failed);
}

/* Every limit up to the one that suffices is an error that names the limit. */
static void every_limit_of_memory(void) {
  xt_buffer pickle;
  make_metadata(&pickle);
  zip_builder zip = {0};
  zip_add(&zip, "a/data.pkl", pickle.data, pickle.size);
  for (int i = 0; i < NAMES; i++) {
    char name[32];
    snprintf(name, sizeof name, "a/code/%d", i);
    zip_add(&zip, name, "", 0);
  }
  zip_finish(&zip);
  for (int pushed = 0; pushed < 2; pushed++) {
    xt_limits limits = sample_limits;
    xt_status status = XT_STATUS_limit;
    size_t refused = 0;
    for (limits.memory = 1; status != XT_STATUS_ok; limits.memory += 97, refused++) {
      sample s;
      xt_error error;
      if (pushed) {
        status = sample_push(zip.out.data, zip.out.size, 1000, &limits, 1 << 20, false, &error);
      } else {
        status = sample_open_with(&s, zip.out.data, zip.out.size, &limits, false, 0);
        error = s.error;
        sample_free(&s);
      }
      CHECK(status == XT_STATUS_ok || (status == XT_STATUS_limit && strstr(error.message, "limits: [memory: n]")));
      CHECK(atomic_load(&xt_memory_live.bytes) == 0);
    }
    CHECK(refused > 100);
  }
  zip_free(&zip);
  xt_buffer_free(&pickle);
}

/* The same for the budget. */
static void every_budget(void) {
  xt_buffer pickle;
  make_metadata(&pickle);
  zip_builder zip = {0};
  zip_add(&zip, "a/data.pkl", pickle.data, pickle.size);
  zip_finish(&zip);
  xt_status status = XT_STATUS_limit;
  for (int64_t budget = 0; status != XT_STATUS_ok; budget += 211) {
    xt_error error;
    xt_memory_set_budget(budget);
    status = sample_push(zip.out.data, zip.out.size, 1000, &sample_limits, 1 << 20, false, &error);
    CHECK(status == XT_STATUS_ok || (status == XT_STATUS_limit && strstr(error.message, "budget")));
    CHECK(atomic_load(&xt_memory_live.bytes) == 0);
  }
  xt_memory_set_budget(INT64_MAX);
  zip_free(&zip);
  xt_buffer_free(&pickle);
}

static void nodes(void) {
  sample s;
  xt_limits limits = sample_limits;
  limits.nodes = 4;
  CHECK(sample_open_with(&s, "\x80\2](NNNe.", 9, &limits, false, 0) == XT_STATUS_ok);
  sample_free(&s);
  limits.nodes = 3;
  CHECK(sample_open_with(&s, "\x80\2](NNNe.", 9, &limits, false, 0) == XT_STATUS_limit);
  CHECK(strstr(s.error.message, "limits: [nodes: n]"));
  sample_free(&s);
}

static void a_gzip_file_that_expands_too_much(void) {
  enum { SIZE = 4 << 20 };
  char *zeros = calloc(SIZE, 1), packed[100000];
  struct libdeflate_compressor *compressor = libdeflate_alloc_compressor(1);
  size_t size = libdeflate_gzip_compress(compressor, zeros, SIZE, packed, sizeof packed);
  libdeflate_free_compressor(compressor);
  for (int lies = 0; lies < 2; lies++) { /* the size at the end is only a hint */
    sample s;
    xt_limits limits = sample_limits;
    limits.memory = SIZE / 2;
    if (lies) memset(packed + size - 4, 0, 4);
    CHECK(sample_open_with(&s, packed, size, &limits, false, 0) == XT_STATUS_limit);
    CHECK(strstr(s.error.message, "gunzip") && !s.error.collect);
    sample_free(&s);
    CHECK(atomic_load(&xt_memory_live.bytes) == 0);
  }
  free(zeros);
}

int main(void) {
  return RUN_TESTS("memory of files", a_load_asks_for_its_bytes, a_load_that_gets_wrong_bytes_fails,
                   a_small_view_of_a_compressed_storage_is_a_copy, a_large_storage_is_read_in_pieces,
                   a_storage_without_bytes_is_refused, an_empty_storage_needs_memory, every_limit_of_memory,
                   every_budget, nodes, a_gzip_file_that_expands_too_much);
}
