/* Streams of many small storages, which share memory. */
#include "core/memory/slab.h"
#include "sample.h"

enum { COUNT = 300, NUMEL = 64, SIZE = NUMEL * 4, PIECE = 1000 };

static char keys[COUNT][12];
static sample_view views[COUNT];
static uint8_t bytes[COUNT][SIZE];

static int64_t live_bytes(void) { return atomic_load(&xt_memory_live.bytes); }

/* Every third record is compressed. */
static void make_zip(zip_builder *zip, const char *order) {
  xt_pickler p;
  char name[32];
  memset(zip, 0, sizeof *zip);
  for (int i = 0; i < COUNT; i++) {
    snprintf(keys[i], sizeof keys[i], "%d", i);
    views[i] = (sample_view){keys[i], keys[i], "torch\nFloatStorage\n", NUMEL, 0, 1, {NUMEL}, {1}};
    for (int k = 0; k < SIZE; k++) bytes[i][k] = (uint8_t)(7 * i + k);
  }
  put_views(&p, views, COUNT);
  zip_add(zip, "a/data.pkl", p.out.data, p.out.size);
  zip_add(zip, "a/byteorder", order, strlen(order));
  for (int i = 0; i < COUNT; i++) {
    snprintf(name, sizeof name, "a/data/%d", i);
    zip_add_with(zip, name, bytes[i], SIZE, i % 3 ? ZIP_STORED : ZIP_DEFLATED, 0);
  }
  zip_finish(zip);
  xt_pickler_free(&p);
}

static void check_region(const xt_region *region, size_t i, bool swapped) {
  CHECK(region && region->size == SIZE && (uintptr_t)region->data % 64 == 0);
  for (size_t k = 0; k < SIZE; k++) CHECK(region->data[k] == bytes[i][swapped ? k ^ 3 : k]);
}

typedef struct {
  zip_builder zip;
  xt_checkpoint checkpoint;
  xt_push push;
  xt_push_event event;
  xt_error error;
  size_t at;
} stream;

static void begin(stream *s, const char *order) {
  memset(s, 0, sizeof *s);
  make_zip(&s->zip, order);
  xt_push_begin_checkpoint(&s->checkpoint, &sample_limits, false, true);
  xt_push_begin(&s->push, &s->checkpoint, 1 << 20);
}

/* Feeds up to the next event. */
static xt_status feed(stream *s) {
  xt_status status;
  do {
    size_t left = s->zip.out.size - s->at, used;
    status = xt_push_feed(&s->push, s->zip.out.data + s->at, left < PIECE ? left : PIECE, &used, &s->event, &s->error);
    s->at += used;
  } while (status == XT_STATUS_ok && s->event == XT_PUSH_MORE);
  return status;
}

static void end_parser(stream *s) {
  xt_push_free(&s->push);
  xt_checkpoint_free(&s->checkpoint);
  zip_free(&s->zip);
}

static void small_storages_share_memory(void) {
  const bool host_is_big_endian = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
  for (int big = 0; big < 2; big++) {
    stream s;
    size_t parts = 0;
    begin(&s, big ? "big" : "little");
    do CHECK(feed(&s) == XT_STATUS_ok);
    while (s.event != XT_PUSH_DONE);
    for (size_t i = 0; i < COUNT; i++) {
      check_region(s.push.regions[i], i, big != host_is_big_endian);
      parts += s.push.regions[i]->is_part;
    }
    CHECK(parts > COUNT - 20);
    end_parser(&s);
  }
}

static void only_wanted_storages_take_memory(void) {
  stream s;
  begin(&s, "little");
  CHECK(feed(&s) == XT_STATUS_ok && s.event == XT_PUSH_DESCRIBED);
  for (size_t i = 0; i < COUNT; i++) s.push.wanted[i] = i % 10 == 0;
  do CHECK(feed(&s) == XT_STATUS_ok);
  while (s.event != XT_PUSH_DONE);
  size_t parts = 0;
  for (size_t i = 0; i < COUNT; i++) {
    CHECK(!s.push.regions[i] == (i % 10 != 0));
    parts += s.push.regions[i] && s.push.regions[i]->is_part;
  }
  CHECK(parts > COUNT / 10 - 20);
  end_parser(&s);
}

/* Takes the region of the storage that is complete, as the owner of a tensor does. */
static xt_region *take_region(stream *s) {
  CHECK(s->event == XT_PUSH_STORAGE);
  xt_region *region = s->push.regions[s->push.storage];
  s->push.regions[s->push.storage] = NULL;
  return region;
}

/* A tensor that is kept, of a stream that does not end, keeps its slab and nothing else. */
static void a_survivor_keeps_only_its_slab(void) {
  for (size_t ends = 100; ends < 200; ends += 7) {
    stream s;
    xt_region *survivor = NULL;
    const size_t kept = ends - 30;
    begin(&s, "little");
    CHECK(feed(&s) == XT_STATUS_ok && s.event == XT_PUSH_DESCRIBED);
    int64_t described = live_bytes();
    for (size_t i = 0; i < ends; i++) {
      CHECK(feed(&s) == XT_STATUS_ok);
      xt_region *region = take_region(&s);
      if (i == kept) survivor = region;
      else xt_region_drop(region);
      CHECK(live_bytes() <= described + 2 * XT_SLAB_MAX + (64 << 10)); /* names and the buffer */
    }
    end_parser(&s);
    CHECK(live_bytes() > 0 && live_bytes() <= XT_SLAB_MAX);
    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) check_region(survivor, kept, false);
    xt_region_drop(survivor);
    CHECK(live_bytes() == 0);
  }
}

/* The stream goes on after the budget was exceeded, at whatever byte that happened. */
static void continues_after_the_budget_was_exceeded(void) {
  size_t refused = 0;
  for (int64_t more = 0; more < 4000; more += 100) {
    stream s;
    begin(&s, "little");
    do CHECK(feed(&s) == XT_STATUS_ok);
    while (s.event != XT_PUSH_STORAGE || s.push.storage < 150);
    xt_memory_set_budget(live_bytes() + more);
    xt_status status;
    do status = feed(&s);
    while (status == XT_STATUS_ok && s.event != XT_PUSH_DONE);
    CHECK(status == XT_STATUS_limit);
    xt_memory_set_budget(INT64_MAX);
    bool collect = s.error.collect;
    refused += collect;
    while (collect && s.event != XT_PUSH_DONE) CHECK(feed(&s) == XT_STATUS_ok);
    for (size_t i = 0; collect && i < COUNT; i++)
      check_region(s.push.regions[i], i, __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
    end_parser(&s);
  }
  CHECK(refused > 0);
}

int main(void) {
  return RUN_TESTS("push_slab", small_storages_share_memory, only_wanted_storages_take_memory,
                   a_survivor_keeps_only_its_slab, continues_after_the_budget_was_exceeded);
}
