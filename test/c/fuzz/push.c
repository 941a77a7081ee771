/* Fuzz target (`make fuzz`): feeds any bytes in any pieces to the push parser. The first byte of the input chooses the
 * sizes of the pieces, the second the options and the wanted storages; the rest is the stream. The result must be the
 * same as with a single piece. */
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/push.h"

static const xt_limits limits = {1 << 20, 0, 1000, 1 << 24, 0};
enum { SPOOL = 1 << 18 };

typedef struct {
  bool done;
  xt_status status;
  size_t used;
  uint64_t sum;
} outcome;

static uint64_t sum_of(const xt_push *p) {
  uint64_t sum = 1469598103934665603ull;
  for (size_t i = 0; i < p->storages; i++)
    for (size_t at = 0; p->regions[i] && at < p->regions[i]->size; at++)
      sum = (sum ^ p->regions[i]->data[at]) * 1099511628211ull;
  return sum;
}

/* 0: all at once; 1 to 127: pieces of that size; else random sizes up to that. */
static size_t piece_size(uint8_t how, uint32_t *seed, size_t remaining) {
  size_t n = how == 0 ? remaining : how < 128 ? how : (*seed = *seed * 1664525 + 1013904223, 1 + (*seed >> 16) % how);
  return n < remaining ? n : remaining;
}

static outcome run(const uint8_t *data, size_t size, uint8_t how, uint8_t want) {
  xt_error error;
  xt_checkpoint c;
  xt_push p;
  xt_push_event event = XT_PUSH_MORE;
  outcome out = {0};
  uint32_t seed = how;
  memset(&error, 0, sizeof error);
  xt_push_begin_checkpoint(&c, &limits, want & 1, want & 2, &error);
  xt_push_begin(&p, &c, SPOOL);
  size_t from = 0;
  while (from < size && out.status == XT_STATUS_ok && event != XT_PUSH_DONE) {
    size_t n = piece_size(how, &seed, size - from), at = 0, used, idle = 0;
    uint8_t *piece = malloc(n); /* of exactly this size, so that the sanitizer reports a read past its end */
    memcpy(piece, data + from, n);
    do {
      out.status = xt_push_feed(&p, piece + at, n - at, &used, &event, &error);
      if (used > n - at) abort();
      at += used;
      idle = used ? 0 : idle + 1;
      if (idle > p.storages + 4) abort(); /* an endless loop of events */
      if (event == XT_PUSH_DESCRIBED && out.status == XT_STATUS_ok && want & 4)
        for (size_t i = 0; i < p.storages; i++) p.wanted[i] = i % 2;
    } while (out.status == XT_STATUS_ok && event != XT_PUSH_DONE && event != XT_PUSH_MORE);
    if (out.status == XT_STATUS_ok && event == XT_PUSH_MORE && at != n) abort();
    free(piece);
    out.used += at;
    from += n;
  }
  out.done = out.status == XT_STATUS_ok && event == XT_PUSH_DONE;
  if (out.done) out.sum = sum_of(&p);
  if (out.status == XT_STATUS_ok && !out.done) {
    if (!xt_push_missing(&p)) abort(); /* not done, but nothing is missing */
    if (xt_push_end(&p, &error) == XT_STATUS_ok) abort();
  }
  xt_push_free(&p);
  xt_checkpoint_free(&c);
  return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 2) return 0;
  outcome whole = run(data + 2, size - 2, 0, data[1]);
  if (!data[0]) return 0;
  outcome cut = run(data + 2, size - 2, data[0], data[1]);
  if (whole.done != cut.done) abort();
  if (whole.done && (whole.used != cut.used || whole.sum != cut.sum)) abort();
  return 0;
}
