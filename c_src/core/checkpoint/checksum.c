#include "core/checkpoint/checksum.h"

#include <libdeflate.h>
#include <stdlib.h>

#include "core/os/background.h"

enum {
  AHEAD = 24,    /* pieces: what is counted is still in a cache when it is written, and has hardly a chance to change */
  REST_US = 1000 /* meanwhile the writer comes through about half of them */
};

struct xt_checksum {
  atomic_int references;       /* the writer's, and those of the idle thread's jobs */
  atomic_uint_least64_t state; /* pieces that are counted << 32 | their checksum */
  atomic_size_t reached;       /* by the writer */
  const uint8_t *data;
  size_t size;
  xt_owner keeper;
};

static uint64_t pieces_of(uint64_t state) { return state >> 32; }

/* One more piece after this state. The other may have been faster: its result is the same. */
static void count(xt_checksum *sum, uint64_t state) {
  size_t at = (size_t)pieces_of(state) * XT_CHECKSUM_PIECE,
         size = sum->size - at < XT_CHECKSUM_PIECE ? sum->size - at : XT_CHECKSUM_PIECE;
  uint64_t crc = libdeflate_crc32((uint32_t)state, sum->data + at, size);
  atomic_compare_exchange_strong(&sum->state, &state, (pieces_of(state) + 1) << 32 | crc);
}

static void drop(xt_checksum *sum) {
  if (atomic_fetch_sub(&sum->references, 1) == 1) free(sum);
}

/* ---- The idle thread's side ---- */

static void count_ahead(void *subject, size_t from, size_t to, const atomic_bool *cancelled) {
  xt_checksum *sum = subject;
  (void)from;
  while (!atomic_load_explicit(cancelled, memory_order_relaxed)) {
    uint64_t state = atomic_load(&sum->state), at = pieces_of(state) * XT_CHECKSUM_PIECE;
    if (at >= to) return;
    bool near = at < atomic_load(&sum->reached) + (uint64_t)AHEAD * XT_CHECKSUM_PIECE;
    if (near) count(sum, state);
    if (!xt_background_pause(near ? 0 : REST_US)) return;
  }
}

static void end_job(void *subject) {
  xt_checksum *sum = subject;
  sum->keeper.drop(sum->keeper.owner);
  drop(sum);
}

/* ---- The writer's side ---- */

xt_checksum *xt_checksum_new(const uint8_t *data, size_t size, xt_owner keeper) {
  xt_checksum *sum = malloc(sizeof *sum);
  if (!sum) return NULL;
  atomic_init(&sum->references, 1);
  atomic_init(&sum->state, 0);
  atomic_init(&sum->reached, 0);
  sum->data = data;
  sum->size = size;
  sum->keeper = keeper;
  return sum;
}

void xt_checksum_allow(xt_checksum *sum, size_t limit) {
  atomic_fetch_add(&sum->references, 1);
  sum->keeper.keep(sum->keeper.owner);
  if (!xt_background_submit((xt_background_job){count_ahead, end_job, sum, 0, limit < sum->size ? limit : sum->size}))
    end_job(sum);
}

void xt_checksum_reach(xt_checksum *sum, size_t end) {
  if (end > sum->size) end = sum->size;
  atomic_store(&sum->reached, end);
  for (uint64_t state; pieces_of(state = atomic_load(&sum->state)) * XT_CHECKSUM_PIECE < end;) count(sum, state);
}

uint32_t xt_checksum_value(const xt_checksum *sum) { return (uint32_t)atomic_load(&sum->state); }

void xt_checksum_free(xt_checksum *sum) {
  if (!sum) return;
  xt_background_cancel(sum);
  drop(sum);
}
