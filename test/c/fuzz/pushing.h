/* Feeds bytes to the push parser in any pieces. The result must be the same as with a single piece, and the same as
 * that of opening the bytes as a file. */
#ifndef XT_FUZZ_PUSHING_H
#define XT_FUZZ_PUSHING_H

#include "core/formats/feed.h"
#include "core/formats/open.h"
#include "reading.h"

enum { SPOOL = 1 << 18 };

typedef struct {
  bool done;
  xt_status status;
  size_t used;
  uint64_t sum; /* of all storages */
} outcome;

typedef struct {
  bool strict, verify;
  bool some;   /* take only every second storage */
  uint8_t how; /* 0: all at once; 1 to 127: pieces of about that size; else random sizes up to that */
} push_options;

static uint64_t add_to_sum(uint64_t sum, const uint8_t *data, size_t size) {
  for (size_t i = 0; i < size; i++) sum = (sum ^ data[i]) * 1099511628211ull;
  return sum;
}

static uint64_t sum_regions(const xt_checkpoint *c, xt_region *const *regions) {
  uint64_t sum = 1469598103934665603ull;
  for (size_t i = 0; i < c->storages.count; i++) {
    sum = add_to_sum(sum, (const uint8_t *)&i, sizeof i);
    if (!regions[i]) continue;
    REQUIRE(regions[i]->size >= c->storages.list[i].bytes);
    sum = add_to_sum(sum, regions[i]->data, c->storages.list[i].bytes);
  }
  return sum;
}

/* Larger files have no pieces of single bytes, which would take long. */
static size_t piece_size(uint8_t how, uint32_t *seed, size_t size, size_t remaining) {
  size_t n = how == 0 ? remaining : how < 128 ? how : (*seed = *seed * 1664525 + 1013904223, 1 + (*seed >> 16) % how);
  n += size / 1024;
  return n < remaining ? n : remaining;
}

/* Feeds one piece until the parser has used it up. */
static size_t feed_piece(xt_push *p, const uint8_t *piece, size_t n, const push_options *o, xt_push_event *event,
                         outcome *out, xt_error *error) {
  size_t at = 0, used, idle = 0;
  p->put_off = false;
  do {
    p->brief = n % 2 && !p->put_off;
    out->status = xt_push_feed(p, piece + at, n - at, &used, event, error);
    REQUIRE(used <= n - at);
    at += used;
    idle = used ? 0 : idle + 1;
    REQUIRE(idle <= p->storages + 4); /* an endless loop of events */
    if (*event == XT_PUSH_DESCRIBED && out->status == XT_STATUS_ok) {
      check_checkpoint(p->checkpoint);
      for (size_t i = 0; o->some && i < p->storages; i++) p->wanted[i] = i % 2;
    }
  } while (out->status == XT_STATUS_ok && *event != XT_PUSH_DONE && (*event != XT_PUSH_MORE || p->put_off));
  if (out->status == XT_STATUS_ok && *event == XT_PUSH_MORE) REQUIRE(at == n);
  return at;
}

static outcome push_pieces(const uint8_t *data, size_t size, const push_options *o) {
  xt_error error;
  xt_checkpoint c;
  xt_push p;
  xt_push_event event = XT_PUSH_MORE;
  outcome out = {0};
  uint32_t seed = o->how;
  memset(&error, 0, sizeof error);
  usage u = usage_begin();
  xt_push_begin_checkpoint(&c, &limits, o->strict, o->verify);
  xt_push_begin(&p, &c, SPOOL);
  for (size_t from = 0, n; from < size && out.status == XT_STATUS_ok && event != XT_PUSH_DONE; from += n) {
    n = piece_size(o->how, &seed, size, size - from);
    uint8_t *piece = malloc(n); /* of exactly this size, so that the sanitizer reports a read past its end */
    memcpy(piece, data + from, n);
    out.used += feed_piece(&p, piece, n, o, &event, &out, &error);
    free(piece);
  }
  out.done = out.status == XT_STATUS_ok && event == XT_PUSH_DONE;
  uint64_t bytes = 0;
  /* a storage is allocated when its first byte arrives, up to the limit of a tensor */
  for (size_t i = 0; i < p.storages; i++) bytes += p.regions && p.regions[i] ? p.regions[i]->size : 0;
  usage_check(&u, size, bytes + (p.region ? p.region->size : 0));
  if (out.done) out.sum = sum_regions(&c, p.regions);
  if (out.status == XT_STATUS_ok && !out.done) {
    REQUIRE(xt_push_missing(&p)); /* not done, so something is missing */
    REQUIRE(xt_push_end(&p, &error) != XT_STATUS_ok);
  }
  if (!out.done) REQUIRE(error.message[0] && strlen(error.message) < XT_ERROR_TEXT);
  xt_push_free(&p);
  xt_checkpoint_free(&c);
  return out;
}

/* Opens the bytes that the parser has used as a file and compares the storages. Some streams are accepted only by one
 * of the two: a file may be refused for its directory. */
static void compare_with_file(const uint8_t *data, const outcome *whole, const push_options *o) {
  xt_error error;
  xt_checkpoint c;
  xt_batch_load load;
  bool finished = false;
  xt_region memory = {.data = (uint8_t *)(uintptr_t)data, .size = whole->used};
  atomic_init(&memory.references, 1 << 20);
  xt_checkpoint_begin(&c, whole->used, 0, &limits, o->strict, o->verify);
  xt_record_reader reader = {.checkpoint = &c, .memory = &memory, .verify = o->verify};
  if (open_with(&c, &reader, &error) == XT_STATUS_ok) {
    bool *wanted = calloc(c.storages.count + 1, 1);
    for (size_t i = 0; i < c.storages.count; i++) wanted[i] = !o->some || i % 2;
    REQUIRE(xt_batch_load_begin(&load, &reader, wanted, &error) == XT_STATUS_ok);
    xt_status status = xt_batch_load_step(&load, UINT64_MAX / 2, &finished, &error);
    if (status == XT_STATUS_ok) REQUIRE(finished && sum_regions(&c, load.regions) == whole->sum);
    xt_batch_load_free(&load);
    free(wanted);
  }
  xt_checkpoint_free(&c);
}

static outcome push_bytes(const uint8_t *data, size_t size, const push_options *options) {
  push_options at_once = *options;
  at_once.how = 0;
  outcome whole = push_pieces(data, size, &at_once);
  if (whole.done) compare_with_file(data, &whole, options);
  if (options->how) {
    outcome cut = push_pieces(data, size, options);
    REQUIRE(whole.done == cut.done);
    if (whole.done) REQUIRE(whole.used == cut.used && whole.sum == cut.sum);
  }
  REQUIRE(!atomic_load(&xt_memory_live.bytes));
  return whole;
}

#endif
