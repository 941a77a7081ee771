#include "core/checkpoint/staged_load.h"

#include <stdlib.h>

#include "sample.h"

enum { STORAGES = 7, LARGE = 3, DEFLATED = 5, EMPTY = 6 };

static const size_t sizes[STORAGES] = {40, 4000, 80, 9 << 20, 400, 5 << 20, 0};

/* A zip file: small storages beside each other, a large one, a compressed one and an empty one. */
static void make(zip_builder *zip, bool big_endian) {
  sample_view views[STORAGES];
  static char names[STORAGES][16], keys[STORAGES][16];
  xt_pickler pickle = {0};
  char path[32];
  memset(zip, 0, sizeof *zip);
  for (int i = 0; i < STORAGES; i++) {
    snprintf(names[i], sizeof names[i], "t%d", i);
    snprintf(keys[i], sizeof keys[i], "%d", i);
    int64_t numel = (int64_t)sizes[i] / 4;
    views[i] = (sample_view){names[i], keys[i], "torch\nFloatStorage\n", numel, 0, 1, {numel}, {1}};
  }
  put_views(&pickle, views, STORAGES);
  zip_add(zip, "archive/data.pkl", pickle.out.data, pickle.out.size);
  zip_add(zip, "archive/byteorder", big_endian ? "big" : "little", big_endian ? 3 : 6);
  for (int i = 0; i < STORAGES; i++) {
    uint8_t *data = malloc(sizes[i] + 1);
    for (size_t at = 0; at < sizes[i]; at++) data[at] = (uint8_t)(at * 7 + at / 4001 + (size_t)i);
    snprintf(path, sizeof path, "archive/data/%d", i);
    zip_add_with(zip, path, data, sizes[i], i == DEFLATED ? ZIP_DEFLATED : ZIP_STORED, 0);
    free(data);
  }
  zip_finish(zip);
  xt_pickler_free(&pickle);
}

/* What the units become. */
typedef struct {
  uint8_t *out[STORAGES];
  uint8_t *buffer;
  int takes, refuse, puts, fail_put; /* every `refuse`-th buffer is not free; put number `fail_put` fails */
} target;

static xt_status take(void *context, uint32_t queue, uint8_t **buffer, xt_error *error) {
  target *t = context;
  (void)error;
  CHECK(queue == 3);
  *buffer = t->refuse && ++t->takes % t->refuse == 0 ? NULL : t->buffer;
  return XT_STATUS_ok;
}

static xt_status put(void *context, size_t id, size_t from, uint64_t at, size_t size, xt_error *error) {
  target *t = context;
  if (t->fail_put && ++t->puts == t->fail_put) return xt_error_set(error, XT_STATUS_torch, "no");
  CHECK(from + size <= XT_STAGE_BYTES && size);
  memcpy(t->out[id] + at, t->buffer + from, size);
  return XT_STATUS_ok;
}

static xt_status pass(void *context, uint32_t queue, xt_error *error) {
  (void)context, (void)error;
  CHECK(queue == 3);
  return XT_STATUS_ok;
}

static void begin(xt_staged_load *load, const sample *s, target *t, uint64_t part) {
  xt_error error;
  xt_staged_unit *units = calloc(STORAGES, sizeof *units);
  xt_stage_sink sink = {t, take, put, pass};
  t->buffer = malloc(XT_STAGE_BYTES);
  for (size_t i = 0; i < STORAGES; i++) {
    size_t storage = STORAGES - 1 - i; /* not in the order of the file */
    units[i] = (xt_staged_unit){.id = storage, .storage = (uint32_t)storage, .queue = 3, .size = sizes[storage]};
    if (storage == LARGE && part) units[i].from = part, units[i].size = 100;
    t->out[storage] = calloc(1, sizes[storage] + 1);
  }
  CHECK(xt_staged_load_begin(load, &s->reader, &sink, units, STORAGES, &error) == XT_STATUS_ok);
}

static void end(xt_staged_load *load, target *t) {
  xt_staged_load_free(load);
  free(t->buffer);
  for (int i = 0; i < STORAGES; i++) free(t->out[i]);
}

/* Compares with a batch load. */
static void check(sample *s, const target *t, uint64_t part) {
  xt_batch_load whole;
  CHECK(sample_load(s, &whole) == XT_STATUS_ok);
  for (size_t i = 0; i < STORAGES; i++) {
    bool is_part = i == LARGE && part;
    CHECK(!memcmp(t->out[i], whole.regions[i]->data + (is_part ? part : 0), is_part ? 100 : sizes[i]));
  }
  xt_batch_load_free(&whole);
}

static void reads_what_a_batch_load_reads(void) {
  for (int variant = 0; variant < 8; variant++) {
    zip_builder zip;
    sample s;
    xt_staged_load load;
    target t = {.refuse = variant & 1 ? 2 : 0};
    xt_staged_state state = XT_STAGED_MORE;
    make(&zip, variant & 2);
    CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
    s.reader.verify = variant & 4;
    uint64_t part = variant == 1 ? 4096 : 0;
    begin(&load, &s, &t, part);
    int waited = 0;
    while (state != XT_STAGED_FINISHED) {
      CHECK(xt_staged_load_step(&load, 1 << 20, &state, &s.error) == XT_STATUS_ok);
      waited += state == XT_STAGED_WAITING;
    }
    CHECK((waited > 0) == (variant & 1) && load.done == load.total);
    check(&s, &t, part);
    end(&load, &t);
    sample_free(&s);
    zip_free(&zip);
  }
}

/* Reads the ranges that the load needs, as Elixir does. */
static xt_status fill_all(xt_staged_load *load, const zip_builder *zip, xt_error *error) {
  xt_staged_state state = XT_STAGED_MORE;
  xt_region region, *bytes = NULL;
  bool again;
  xt_status status;
  xt_need ahead[4], next = {0, 0, NULL};
  while ((status = xt_staged_load_fill(load, bytes, &state, &again, error)) == XT_STATUS_ok &&
         state != XT_STAGED_FINISHED) {
    if (state == XT_STAGED_WAITING && again) continue;
    bytes = NULL;
    if (state == XT_STAGED_WAITING) continue;
    CHECK(load->need.size && load->need.size <= XT_STAGE_BYTES + 4096);
    if (next.size) CHECK(load->need.offset <= next.offset + next.size);
    size_t count = xt_staged_load_ahead(load, ahead, 4);
    next = count ? ahead[0] : (xt_need){0, 0, NULL};
    for (size_t i = 0; i < count; i++)
      CHECK(ahead[i].size &&
            ahead[i].offset >= (i ? ahead[i - 1].offset + ahead[i - 1].size : load->need.offset + load->need.size));
    region = (xt_region){.data = zip->out.data + load->need.offset, .size = load->need.size};
    atomic_init(&region.references, 1 << 20);
    bytes = &region;
  }
  return status;
}

static void takes_the_bytes_of_a_source(void) {
  for (int variant = 0; variant < 8; variant++) {
    zip_builder zip;
    sample s;
    xt_staged_load load;
    target t = {.refuse = variant & 1 ? 3 : 0};
    make(&zip, variant & 2);
    CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
    xt_region *memory = s.reader.memory;
    s.reader.memory = NULL;
    s.reader.verify = variant & 4;
    uint64_t part = variant == 1 ? 5000 : 0;
    begin(&load, &s, &t, part);
    CHECK(fill_all(&load, &zip, &s.error) == XT_STATUS_ok && load.done == load.total);
    s.reader.memory = memory;
    check(&s, &t, part);
    end(&load, &t);
    sample_free(&s);
    zip_free(&zip);
  }
}

static void memory_is_a_unit_too(void) {
  static uint8_t bytes[5 << 20];
  xt_staged_load load;
  xt_staged_state state = XT_STAGED_MORE;
  xt_error error;
  target t = {.out = {malloc(sizeof bytes)}, .buffer = malloc(XT_STAGE_BYTES)};
  xt_stage_sink sink = {&t, take, put, pass};
  xt_staged_unit *units = calloc(1, sizeof *units);
  units[0] = (xt_staged_unit){.queue = 3, .size = sizeof bytes, .memory = bytes};
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i / 3);
  CHECK(xt_staged_load_begin(&load, &(xt_record_reader){0}, &sink, units, 1, &error) == XT_STATUS_ok);
  while (state != XT_STAGED_FINISHED) CHECK(xt_staged_load_step(&load, 1, &state, &error) == XT_STATUS_ok);
  CHECK(!memcmp(t.out[0], bytes, sizeof bytes));
  end(&load, &t);
}

static void errors_end_the_load(void) {
  for (int fail = 1; fail < 8; fail++) {
    zip_builder zip;
    sample s;
    xt_staged_load load;
    target t = {.fail_put = fail};
    xt_staged_state state = XT_STAGED_MORE;
    make(&zip, false);
    CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
    begin(&load, &s, &t, 0);
    CHECK(xt_staged_load_step(&load, UINT64_MAX / 2, &state, &s.error) == XT_STATUS_torch);
    CHECK(xt_staged_load_step(&load, 1, &state, &s.error) == XT_STATUS_stale);
    end(&load, &t);
    sample_free(&s);
    zip_free(&zip);
  }
}

static void damage_is_found(void) {
  for (int storage = 0; storage < STORAGES - 1; storage++) {
    zip_builder zip;
    sample s;
    xt_staged_load load;
    target t = {0};
    xt_staged_state state;
    make(&zip, false);
    CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
    const xt_record *record = s.checkpoint.records[storage];
    zip.out.data[record->header + 60 + record->packed / 2 % 1000] ^= 1;
    begin(&load, &s, &t, 0);
    CHECK(xt_staged_load_step(&load, UINT64_MAX / 2, &state, &s.error) != XT_STATUS_ok);
    end(&load, &t);
    sample_free(&s);
    zip_free(&zip);
  }
}

static void a_source_must_return_what_was_asked_for(void) {
  zip_builder zip;
  sample s;
  xt_staged_load load;
  target t = {0};
  xt_staged_state state;
  bool again;
  make(&zip, false);
  CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
  s.reader.memory = NULL;
  begin(&load, &s, &t, 0);
  CHECK(xt_staged_load_fill(&load, NULL, &state, &again, &s.error) == XT_STATUS_ok && state == XT_STAGED_MORE);
  xt_region few = {.data = zip.out.data, .size = 3};
  CHECK(xt_staged_load_fill(&load, &few, &state, &again, &s.error) == XT_STATUS_io);
  CHECK(xt_staged_load_fill(&load, NULL, &state, &again, &s.error) == XT_STATUS_stale);
  end(&load, &t);
  sample_free(&s);
  zip_free(&zip);
}

int main(void) {
  return RUN_TESTS("staged_load", reads_what_a_batch_load_reads, takes_the_bytes_of_a_source, memory_is_a_unit_too,
                   errors_end_the_load, damage_is_found, a_source_must_return_what_was_asked_for);
}
