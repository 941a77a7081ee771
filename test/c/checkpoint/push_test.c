/* Feeds every file given as an argument to the push parser. However the file is cut into pieces, the storages are the
 * same as those of a whole read, and parsing stops at the end of the file. Truncated, with every bit flipped, and with
 * every allocation failing once, nothing may crash, hang or leak.
 *
 * Every file is cut into two pieces at every place. Files up to 512 bytes, or EXTORCH_SWEEP bytes if that is set, are
 * cut into three pieces in every way. 2048 takes long; 0 is for programs that count which lines are reached. */
#include "core/formats/feed.h"
#include "core/formats/open.h"

#include <string.h>

#include "check.h"
#include "core/memory/memory.h"
#include "failing.h"

static const xt_limits limits = {.pickle_bytes = 64 << 20, .depth = 1000, .tensor_bytes = (uint64_t)1 << 40};
enum { SPOOL = 1 << 20 };
static size_t one_cuts, two_cuts, byte_feeds, flips, failed_allocations;

/* The result of reading the whole file from memory. */
typedef struct {
  xt_checkpoint checkpoint;
  xt_region memory;
  xt_batch_load load;
  uint64_t end; /* of the first save in the file */
  bool streams; /* the format can be read forward only */
} whole;

static void open_whole(whole *w, uint8_t *data, size_t size) {
  xt_error error;
  xt_need need;
  bool finished = false;
  w->memory = (xt_region){.data = data, .size = size};
  atomic_init(&w->memory.references, 1 << 20); /* never freed */
  xt_checkpoint *c = &w->checkpoint;
  xt_checkpoint_begin(c, size, 0, &limits, false, true);
  while (xt_open_step(c, &need, &error) == XT_STATUS_ok && need.size) memcpy(need.to, data + need.offset, need.size);
  CHECK(c->root);
  const char *format = xt_checkpoint_format(c);
  w->streams = !c->unpacked && strcmp(format, "tar");
  w->end = c->next ? c->next : size;
  bool *wanted = malloc(c->storages.count + 1);
  memset(wanted, 1, c->storages.count + 1);
  xt_record_reader reader = {.checkpoint = c, .memory = c->unpacked ? c->memory : &w->memory};
  CHECK(xt_batch_load_begin(&w->load, &reader, wanted, &error) == XT_STATUS_ok);
  CHECK(xt_batch_load_step(&w->load, UINT64_MAX / 2, &finished, &error) == XT_STATUS_ok && finished);
  free(wanted);
}

static void compare(const whole *w, const xt_checkpoint *c, const xt_push *p) {
  CHECK(c->index.count == w->checkpoint.index.count && p->storages == w->checkpoint.storages.count);
  for (size_t i = 0; i < c->index.count; i++) {
    const xt_index_entry *a = &c->index.entries[i], *b = &w->checkpoint.index.entries[i];
    CHECK(a->name_size == b->name_size && !memcmp(a->name, b->name, a->name_size));
    CHECK(a->tensor->dtype == b->tensor->dtype && a->tensor->ndim == b->tensor->ndim &&
          a->tensor->storage == b->tensor->storage && a->tensor->offset == b->tensor->offset);
  }
  for (size_t i = 0; i < p->storages; i++) {
    const xt_storage *storage = &c->storages.list[i];
    const xt_region *ours = p->regions[i], *theirs = w->load.regions[i];
    if (!theirs) continue; /* meta */
    CHECK(ours && ours->size >= storage->bytes && !memcmp(ours->data, theirs->data, storage->bytes));
  }
}

/* Feeds data in pieces that end at the cuts. Returns true when the parser is done; *used is the number of bytes it has
 * taken. The result is compared with `w` unless that is NULL. */
static bool feed(const uint8_t *data, const size_t *cuts, size_t count, bool verify, const whole *w, size_t *used,
                 xt_error *error) {
  xt_checkpoint c;
  xt_push p;
  xt_push_event event = XT_PUSH_MORE;
  xt_status status = XT_STATUS_ok;
  size_t from = 0;
  memset(error, 0, sizeof *error);
  xt_push_begin_checkpoint(&c, &limits, false, verify);
  xt_push_begin(&p, &c, SPOOL);
  for (size_t i = 0; i < count && status == XT_STATUS_ok && event != XT_PUSH_DONE; i++) {
    /* A copy of exactly this size, so that the sanitizer reports a read past its end. */
    size_t size = cuts[i] - from, at = 0, taken;
    uint8_t *piece = __real_malloc(size ? size : 1);
    memcpy(piece, data + from, size);
    p.put_off = false;
    do {
      p.brief = i % 2 == 0 && !p.put_off;
      status = xt_push_feed(&p, piece + at, size - at, &taken, &event, error);
      at += taken;
    } while (status == XT_STATUS_ok && event != XT_PUSH_DONE && (event != XT_PUSH_MORE || p.put_off));
    free(piece);
    if (event == XT_PUSH_MORE && status == XT_STATUS_ok) CHECK(at == size);
    *used = from + at;
    from = cuts[i];
  }
  bool done = status == XT_STATUS_ok && event == XT_PUSH_DONE;
  if (done && w) compare(w, &c, &p);
  if (status == XT_STATUS_ok && !done) {
    CHECK(xt_push_missing(&p) > 0);
    CHECK(xt_push_end(&p, error) != XT_STATUS_ok && error->message[0]);
  }
  if (status != XT_STATUS_ok) CHECK(error->message[0] || status == XT_STATUS_no_memory);
  xt_push_free(&p);
  xt_checkpoint_free(&c);
  return done;
}

static void cuts_everywhere(const uint8_t *data, size_t size, const whole *w) {
  xt_error error;
  size_t used, cuts[3] = {0, 0, size};
  const char *sweep = getenv("EXTORCH_SWEEP");
  size_t three_pieces = sweep ? strtoul(sweep, NULL, 10) : 512;
  for (size_t one = 0; one <= size; one++) {
    cuts[0] = cuts[1] = one;
    CHECK(feed(data, cuts, 3, one % 2, w, &used, &error) && used == w->end);
    CHECK(!feed(data, cuts, 1, false, NULL, &used, &error) || one >= w->end);
    one_cuts++;
    if (size > three_pieces) continue;
    for (cuts[1] = one; cuts[1] <= size; cuts[1]++, two_cuts++) CHECK(feed(data, cuts, 3, false, w, &used, &error));
  }
}

/* Single bytes, and pieces of random sizes. */
static void small_pieces(const uint8_t *data, size_t size, const whole *w) {
  xt_error error;
  size_t used, *cuts = malloc((size + 1) * sizeof *cuts);
  for (size_t i = 0; i < size; i++) cuts[i] = i + 1;
  CHECK(feed(data, cuts, size, true, w, &used, &error) && used == w->end);
  byte_feeds++;
  srand(1);
  for (int round = 0; round < 50; round++) {
    size_t at = 0, n = 0;
    while (at < size) {
      at += (size_t)(rand() % (1 << rand() % 12)) + 1;
      cuts[n++] = at < size ? at : size;
    }
    CHECK(feed(data, cuts, n, false, w, &used, &error) && used == w->end);
  }
  free(cuts);
}

static void survives_every_flipped_bit(uint8_t *data, size_t size) {
  xt_error error;
  size_t used;
  for (size_t bit = 0; bit < 8 * size; bit++, flips++) {
    data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    feed(data, &size, 1, bit % 2, NULL, &used, &error);
    data[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
}

/* In a small file, also every allocation from an arena. */
static void survives_every_failed_allocation(const uint8_t *data, size_t size, const whole *w) {
  xt_error error;
  size_t used;
  fail_arenas = size <= 16 << 10;
  for (fail_at = 0;; fail_at++) {
    allocations = 0;
    bool done = feed(data, &size, 1, false, w, &used, &error);
    if (allocations <= fail_at) {
      CHECK(done);
      break;
    }
    failed_allocations++;
  }
  fail_at = -1;
  fail_arenas = false;
}

static void test_file(const char *path) {
  enum { FOLLOWING = 64 };
  size_t size, used;
  uint8_t *data = read_whole_file(path, FOLLOWING, &size);
  memset(data + size, 'P', FOLLOWING); /* further data on the same connection */
  xt_error error;
  whole w;
  open_whole(&w, data, size);
  if (w.streams) {
    size_t longer = size + FOLLOWING;
    CHECK(feed(data, &longer, 1, true, &w, &used, &error) && used == w.end);
    cuts_everywhere(data, size, &w);
    small_pieces(data, size, &w);
    if (size <= 6000) survives_every_flipped_bit(data, size);
    survives_every_failed_allocation(data, size, &w);
  } else {
    CHECK(!feed(data, &size, 1, false, NULL, &used, &error) && error.status == XT_STATUS_unsupported);
  }
  xt_batch_load_free(&w.load);
  xt_checkpoint_free(&w.checkpoint);
  CHECK(atomic_load(&xt_memory_live.bytes) == 0);
  free(data);
}

int main(int argc, char **argv) {
  int status = run_test_for_each("push", test_file, argc - 1, argv + 1);
  print_figure("one_cuts", one_cuts);
  print_figure("two_cuts", two_cuts);
  print_figure("byte_feeds", byte_feeds);
  print_figure("flips", flips);
  print_figure("failed_allocations", failed_allocations);
  return status;
}
