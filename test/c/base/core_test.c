/* Unit tests of c_src/core, run under ASan and UBSan by `make check`. */
#include <libdeflate.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "check.h"
#include "core/base/arena.h"
#include "core/base/buffer.h"
#include "core/base/dtype.h"
#include "core/base/element.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/checkpoint/checksum.h"
#include "core/memory/block_cache.h"
#include "core/memory/frozen.h"
#include "core/memory/memory.h"
#include "core/memory/prefault.h"
#include "core/memory/reaper.h"
#include "core/os/address.h"
#include "core/os/background.h"
#include "core/os/cpu_yield.h"
#include "core/os/exit_guard.h"

static void errors(void) {
  xt_error error;
  CHECK(xt_error_set(&error, XT_STATUS_io, "disk %d", 7) == XT_STATUS_io);
  CHECK(error.offset == -1 && !strcmp(error.message, "disk 7"));
  CHECK(xt_error_at(&error, XT_STATUS_corrupt, 12, "x") == XT_STATUS_corrupt && error.offset == 12);
  char longer[3 * XT_ERROR_TEXT];
  memset(longer, 'a', sizeof longer - 1);
  longer[sizeof longer - 1] = 0;
  xt_error_set(&error, XT_STATUS_limit, "%s", longer);
  CHECK(strlen(error.message) == XT_ERROR_TEXT - 1);
  CHECK(!strcmp(xt_status_name(XT_STATUS_file_changed), "file_changed"));
  CHECK(!strcmp(xt_status_name((xt_status)999), "unknown"));
}

static void dtypes(void) {
  for (int i = 0; i < XT_DTYPE_COUNT; i++) {
    const xt_dtype_info *info = xt_dtype_get((xt_dtype)i);
    CHECK(xt_dtype_from_name(info->name) == (xt_dtype)i);
    CHECK(xt_dtype_from_name(info->alias) == (xt_dtype)i);
    CHECK(xt_dtype_from_torch(info->torch) == (xt_dtype)i);
    if (info->nx_bits) CHECK(xt_dtype_from_nx(info->nx, info->nx_bits) == (xt_dtype)i);
  }
  CHECK(xt_dtype_from_name("") == XT_DTYPE_COUNT);
  CHECK(xt_dtype_from_nx("none", 0) == XT_DTYPE_COUNT);
  CHECK(xt_dtype_from_torch(99) == XT_DTYPE_COUNT);
}

static double real(xt_dtype dtype, const void *data) { return xt_element_read(dtype, data).re; }

static void elements(void) {
  CHECK(real(XT_float16, (uint8_t[]){0x00, 0x3c}) == 1.0);
  CHECK(real(XT_float16, (uint8_t[]){0x01, 0x00}) == ldexp(1, -24));
  CHECK(isinf(real(XT_float16, (uint8_t[]){0x00, 0xfc})));
  CHECK(real(XT_bfloat16, (uint8_t[]){0x80, 0xbf}) == -1.0);
  CHECK(real(XT_float8_e5m2, (uint8_t[]){0x3c}) == 1.0);
  CHECK(real(XT_float8_e4m3fn, (uint8_t[]){0x7e}) == 448.0);
  CHECK(isnan(real(XT_float8_e4m3fn, (uint8_t[]){0xff})));
  CHECK(isnan(real(XT_float8_e5m2fnuz, (uint8_t[]){0x80})));
  CHECK(real(XT_float8_e4m3fnuz, (uint8_t[]){0x40}) == 1.0);
  CHECK(real(XT_float8_e8m0fnu, (uint8_t[]){127}) == 1.0 && isnan(real(XT_float8_e8m0fnu, (uint8_t[]){255})));
  CHECK(xt_element_read(XT_int8, (uint8_t[]){0xff}).i == -1);
  CHECK(xt_element_read(XT_int16, (uint8_t[]){0xfe, 0xff}).i == -2);
  CHECK(xt_element_read(XT_uint64, (uint64_t[]){UINT64_MAX}).u == UINT64_MAX);
  CHECK(xt_element_read(XT_int64, (int64_t[]){INT64_MIN}).i == INT64_MIN);
  CHECK(xt_element_read(XT_qint32, (int32_t[]){-5}).i == -5);
  CHECK(xt_element_read(XT_bool, (uint8_t[]){2}).u == 1);
  xt_element z = xt_element_read(XT_complex32, (uint8_t[]){0x00, 0x3c, 0x00, 0xc0});
  CHECK(z.kind == XT_ELEMENT_COMPLEX && z.re == 1.0 && z.im == -2.0);
  CHECK(xt_element_int_fits(XT_uint8, 255) && !xt_element_int_fits(XT_uint8, 256) &&
        !xt_element_int_fits(XT_uint8, -1));
  CHECK(xt_element_int_fits(XT_int8, -128) && !xt_element_int_fits(XT_int8, 128));
  CHECK(xt_element_int_fits(XT_int64, INT64_MIN) && xt_element_int_fits(XT_float32, 1 << 30));
  CHECK(xt_element_int_fits(XT_uint64, 5) && !xt_element_int_fits(XT_uint64, -5) && !xt_element_int_fits(XT_bool, 2));
}

static void memory(void) {
  int64_t before = atomic_load(&xt_memory_live.bytes);
  size_t sizes[] = {1, 100, 4096, (1 << 20) - 1, 1 << 20, (2 << 20) + 5, 64 << 20};
  xt_memory_taken();
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    char *block = xt_memory_alloc(sizes[i]);
    CHECK(block && (uintptr_t)block % 64 == 0);
    if (sizes[i] >= 2 << 20) CHECK((uintptr_t)block % (2 << 20) == 0);
    memset(block, 1, sizes[i]);
    CHECK(atomic_load(&xt_memory_live.bytes) == before + (int64_t)sizes[i]);
    CHECK(xt_memory_taken() == (int64_t)sizes[i]);
    xt_memory_free(block);
    CHECK(atomic_load(&xt_memory_live.bytes) == before);
  }
  xt_memory_free(NULL);
  xt_memory_set_budget(before + 1000);
  CHECK(xt_memory_budget() == before + 1000);
  CHECK(!xt_memory_alloc(1001) && xt_memory_refused() == XT_REFUSED_BUDGET && xt_memory_refused() == XT_REFUSED_NOT);
  void *all = xt_memory_alloc(1000);
  CHECK(all && !xt_memory_alloc(1));
  xt_memory_free(all);
  xt_memory_set_budget(INT64_MAX);
  CHECK(!xt_memory_alloc((size_t)1 << 60) && xt_memory_refused() == XT_REFUSED_MACHINE);
  CHECK(!xt_memory_alloc(SIZE_MAX) && xt_memory_refused() != XT_REFUSED_NOT);
  CHECK(atomic_load(&xt_memory_live.bytes) == before);
}

static atomic_int reaped;
typedef struct {
  xt_reapable reapable;
  int value;
} item;

static void reap_item(xt_reapable *self) {
  atomic_fetch_add(&reaped, ((item *)self)->value);
  free(self);
}

static void *push_many(void *unused) {
  (void)unused;
  for (int i = 0; i < 10000; i++) {
    item *one = malloc(sizeof *one);
    *one = (item){{NULL, reap_item}, 1};
    xt_reaper_push(&one->reapable);
  }
  return NULL;
}

static void reaper(void) {
  pthread_t threads[4];
  CHECK(xt_reaper_start() && xt_reaper_start());
  CHECK(xt_reaper_drain(10000));
  CHECK(xt_reaper_drain(0));
  for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, push_many, NULL));
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  CHECK(xt_reaper_drain(10000));
  CHECK(atomic_load(&reaped) == 40000);
}

/* Against the obvious way: a list of ranges, looked through. */
static void frozen(void) {
  enum { N = 400 };
  static xt_frozen nodes[N];
  static struct {
    uintptr_t start;
    size_t size;
    bool on;
  } plain[N];
  unsigned seed = 1;
  for (int step = 0; step < 20000; step++) {
    int i = rand_r(&seed) % N;
    if (plain[i].on) {
      xt_frozen_remove(&nodes[i]);
      plain[i].on = false;
    } else {
      plain[i].start = 1000 + (uintptr_t)rand_r(&seed) % 5000;
      plain[i].size = (size_t)(rand_r(&seed) % 40);
      plain[i].on = plain[i].size > 0;
      xt_frozen_add(&nodes[i], (void *)plain[i].start, plain[i].size);
    }
    uintptr_t start = 900 + (uintptr_t)rand_r(&seed) % 5200;
    size_t size = (size_t)(rand_r(&seed) % 20);
    bool expected = false;
    for (int k = 0; k < N; k++)
      expected |= plain[k].on && size && plain[k].start < start + size && start < plain[k].start + plain[k].size;
    CHECK(xt_frozen_overlaps((void *)start, size) == expected);
  }
  for (int i = 0; i < N; i++) xt_frozen_remove(&nodes[i]);
  CHECK(!xt_frozen_overlaps((void *)1, 1 << 20));
}

static void arena(void) {
  xt_arena pieces = {NULL};
  for (size_t size = 0; size < 20000; size += 37) {
    char *piece = xt_arena_alloc(&pieces, 1, size);
    CHECK(piece && (uintptr_t)piece % _Alignof(max_align_t) == 0);
    for (size_t i = 0; i < size; i++) CHECK(piece[i] == 0);
    memset(piece, 1, size);
  }
  CHECK(!strcmp(xt_arena_text(&pieces, "hello", 4), "hell"));
  CHECK(!xt_arena_alloc(&pieces, SIZE_MAX / 2, 3) && !xt_arena_text(&pieces, "", SIZE_MAX));
  xt_arena_free(&pieces);
  xt_arena_free(&pieces);
}

static void suggest(void) {
  CHECK(xt_suggest_distance("", "") == 0 && xt_suggest_distance("abc", "") == 3);
  CHECK(xt_suggest_distance("matmul", "matmull") == 1 && xt_suggest_distance("recieve", "receive") == 1);
  CHECK(xt_suggest_distance("kitten", "sitting") == 3);
  char longer[200];
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = 0;
  CHECK(xt_suggest_distance(longer, longer) == 0);
}

static void probe(void) {
  char *page = mmap(NULL, 3 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED);
  CHECK(xt_address_readable(page, 3 * 4096) && xt_address_readable(page + 1, 1) && xt_address_readable(NULL, 0));
  CHECK(!munmap(page + 4096, 4096));
  CHECK(!xt_address_readable(page, 3 * 4096) && !xt_address_readable(page, 4097) && xt_address_readable(page, 4096));
  CHECK(!mprotect(page, 4096, PROT_NONE) && !xt_address_readable(page, 1));
  CHECK(!xt_address_readable(NULL, 1) && !xt_address_readable((void *)(UINTPTR_MAX - 3), 100));
  munmap(page, 4096);
  munmap(page + 8192, 4096);
}

/* Touched memory keeps what it holds; regions that are forgotten go, also while they wait to be touched. */
static void prefault(void) {
  int64_t bytes = atomic_load(&xt_memory_live.bytes);
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < 20; i++) { /* more than there is room for */
      xt_region *region = xt_region_new((size_t)(5 << 20) + (size_t)i * 777, (uint64_t)i * 64);
      region->data[0] = region->data[region->size - 1] = (uint8_t)i;
      xt_prefault(region, 0, region->size);
      CHECK(region->data[0] == i && region->data[region->size - 1] == i);
      if (i % 2) xt_prefault_cancel(region);
      xt_region_drop(region);
    }
  }
  for (int i = 0; i < 10000 && atomic_load(&xt_memory_live.bytes) > bytes; i++) {
    struct timespec pause = {0, 1000000};
    xt_background_settle(1);
    xt_reaper_drain(1000);
    nanosleep(&pause, NULL);
  }
  CHECK(atomic_load(&xt_memory_live.bytes) == bytes);
}

/* A freed block serves the next one that suits it; else it goes, and nothing is spared for long. */
static void spares(void) {
  char *first = xt_memory_alloc(9 << 20);
  memset(first, 1, 9 << 20);
  xt_memory_free(first);
  char *second = xt_memory_alloc(6 << 20);
  CHECK(second == first);
  memset(second, 2, 6 << 20);
  xt_memory_free(second);
  char *third = xt_memory_alloc(9 << 20); /* all of it is still there */
  CHECK(third == first);
  memset(third, 3, 9 << 20);
  xt_memory_free(third);
  char *smaller = xt_memory_alloc(3 << 20);
  CHECK(!xt_block_cache_take(9 << 20));
  memset(smaller, 4, 3 << 20);
  xt_memory_free(smaller);
  char *many[12];
  for (int i = 0; i < 12; i++) many[i] = xt_memory_alloc((size_t)(3 + i) << 20);
  for (int i = 0; i < 12; i++) xt_memory_free(many[i]);
  for (int i = 0; i < 12; i++) memset(many[i] = xt_memory_alloc((size_t)(14 - i) << 20), i, (size_t)(14 - i) << 20);
  for (int i = 0; i < 12; i++) CHECK(many[i][0] == i && many[i][((size_t)(14 - i) << 20) - 1] == i);
  for (int i = 0; i < 12; i++) xt_memory_free(many[i]);
  char *huge = xt_memory_alloc(100 << 20);
  CHECK(!xt_block_cache_take(2 << 20));
  xt_memory_free(huge); /* too large to be spared */
  CHECK(!xt_block_cache_take(100 << 20));
  xt_memory_free(xt_memory_alloc(2 << 20));
  nanosleep(&(struct timespec){2, 0}, NULL);
  CHECK(!xt_block_cache_take(2 << 20));
}

static void pause_long(void *subject, size_t from, size_t to, const atomic_bool *cancelled) {
  (void)from, (void)to;
  atomic_store((atomic_int *)subject, 1);
  while (!atomic_load(cancelled) && xt_background_pause(500000)) {
  }
}

static void count_drop(void *subject) { atomic_fetch_add((atomic_int *)subject, 10); }

/* A job that is forgotten in a pause goes at once, however long the thread stays away; each is dropped once. */
static void idle(void) {
  static atomic_int jobs[20];
  int begun = 0, at_once = 0;
  for (int i = 0; i < 20 && !at_once; i++) {
    if (!xt_background_submit((xt_background_job){pause_long, count_drop, &jobs[i], 0, 0})) continue;
    for (int ms = 0; ms < 100 && !atomic_load(&jobs[i]); ms++) nanosleep(&(struct timespec){0, 1000000}, NULL);
    begun += atomic_load(&jobs[i]);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    xt_background_cancel(&jobs[i]);
    at_once += atomic_load(&jobs[i]) == 11;
  }
  CHECK(at_once || !begun);
  nanosleep(&(struct timespec){0, 600000000}, NULL);
  xt_background_settle(1000);
  for (int i = 0; i < 20; i++) CHECK(atomic_load(&jobs[i]) <= 11 && atomic_load(&jobs[i]) != 1);
}

static void decimals(void) {
  static const struct {
    uint64_t number;
    const char *text;
  } cases[] = {{0, "0"}, {9, "9"}, {10, "10"}, {1234567890, "1234567890"}, {UINT64_MAX, "18446744073709551615"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xt_buffer buffer = {0};
    xt_buffer_decimal(&buffer, cases[i].number);
    CHECK(buffer.size == strlen(cases[i].text) && !memcmp(buffer.data, cases[i].text, buffer.size));
    xt_buffer_free(&buffer);
  }
}

static void keep(void *owner) { atomic_fetch_add((atomic_int *)owner, 1); }
static void let_go(void *owner) { atomic_fetch_sub((atomic_int *)owner, 1); }

/* Whoever counts a piece, the sum is the same; one that is given up is let go. */
static void checksum(void) {
  enum { MOST = 9 << 20 };
  atomic_int kept = 0;
  uint8_t *data = malloc(MOST);
  for (size_t i = 0; i < MOST; i++) data[i] = (uint8_t)(i * 2654435761u >> 13);
  for (unsigned round = 0; round < 200; round++) {
    size_t size = round % 5 ? (size_t)round * 48611 % MOST : MOST, at = 0;
    xt_checksum *sum = xt_checksum_new(data, size, (xt_owner){keep, let_go, &kept});
    CHECK(sum);
    bool whole = round % 7 != 3;
    size_t goal = whole ? size : size / 2 / XT_CHECKSUM_PIECE * XT_CHECKSUM_PIECE;
    while (at < goal) {
      size_t limit = goal - at < 5 * XT_CHECKSUM_PIECE ? goal : at + 5 * XT_CHECKSUM_PIECE;
      xt_checksum_allow(sum, limit);
      for (; at < limit; at += XT_CHECKSUM_PIECE) xt_checksum_reach(sum, at + XT_CHECKSUM_PIECE);
      CHECK(xt_checksum_value(sum) == libdeflate_crc32(0, data, at < size ? at : size)); /* nobody went further */
    }
    if (whole) CHECK(xt_checksum_value(sum) == libdeflate_crc32(0, data, size));
    xt_checksum_free(sum);
  }
  for (int i = 0; i < 10000 && atomic_load(&kept); i++) {
    xt_background_settle(100);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
  CHECK(!atomic_load(&kept));
  free(data);
}

static void stay_on(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET((unsigned)core, &one);
  CHECK(!sched_setaffinity(0, sizeof one, &one));
}

typedef struct {
  int core;
  atomic_bool over;
} looker;

/* Looks for work as a scheduler of the VM does. */
static void *look(void *argument) {
  looker *l = argument;
  stay_on(l->core);
  while (!atomic_load(&l->over)) sched_yield();
  return NULL;
}

static int64_t nanoseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* A job leaves the core of somebody who waits for it, and may run wherever it could before. */
static void give_way(void) {
  cpu_set_t before, after;
  if (sched_getaffinity(0, sizeof before, &before)) return; /* more cores than the set has room for */
  looker looker = {sched_getcpu(), false};
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, look, &looker));
  stay_on(looker.core);
  CHECK(!sched_setaffinity(0, sizeof before, &before));
  /* The kernel would part them too, but only after hundreds of turns. */
  bool elsewhere = CPU_COUNT(&before) > 1 && CPU_COUNT(&before) <= 8;
  for (int turns = 0; elsewhere && sched_getcpu() == looker.core;) {
    int64_t began = nanoseconds();
    xt_cpu_yield();
    turns += nanoseconds() - began > 10000;
    CHECK(turns < 10);
  }
  atomic_store(&looker.over, true);
  pthread_join(thread, NULL);
  for (int i = 0; i < 1000; i++) xt_cpu_yield();
  CHECK(!sched_getaffinity(0, sizeof after, &after) && CPU_EQUAL(&before, &after));
}

static void calls(void) {
  CHECK(xt_exit_guard_enter());
  xt_exit_guard_leave();
  xt_exit_guard_install();
}

int main(void) {
  void (*const tests[])(void) = {errors, dtypes,   elements, memory, reaper,   frozen,   arena,    suggest,
                                 probe,  prefault, spares,   idle,   decimals, checksum, give_way, calls};
  size_t count = sizeof tests / sizeof *tests;
  for (size_t i = 0; i < count; i++) tests[i]();
  printf("core: %zu passed, 0 failed\n", count);
  return 0;
}
