#include "core/checkpoint/checksum.h"

#include <libdeflate.h>
#include <stdlib.h>

#include "core/os/background.h"

enum {
  AHEAD = 24,     /* maximum lead in pieces: they are still in a cache when they are written */
  PAUSE_US = 1000 /* in this time the writer processes about half of them */
};

struct xt_checksum {
  atomic_int references;       /* one of the writer and one of each background job */
  atomic_uint_least64_t state; /* number of processed pieces << 32 | their checksum */
  atomic_size_t reached;       /* position of the writer */
  const uint8_t *data;
  size_t size;
  xt_owner keeper;
};

static uint64_t pieces_of(uint64_t state) { return state >> 32; }

/* Processes the piece that follows this state. If the other thread was faster, the state has already changed to the
 * same result. */
static void process_piece(xt_checksum *sum, uint64_t state) {
  size_t at = (size_t)pieces_of(state) * XT_CHECKSUM_PIECE,
         size = sum->size - at < XT_CHECKSUM_PIECE ? sum->size - at : XT_CHECKSUM_PIECE;
  uint64_t crc = libdeflate_crc32((uint32_t)state, sum->data + at, size);
  atomic_compare_exchange_strong(&sum->state, &state, (pieces_of(state) + 1) << 32 | crc);
}

static void release(xt_checksum *sum) {
  if (atomic_fetch_sub(&sum->references, 1) == 1) free(sum);
}

/* ---- Background thread ---- */

static void process_ahead(void *subject, size_t from, size_t to, const atomic_bool *cancelled) {
  xt_checksum *sum = subject;
  (void)from;
  while (!atomic_load_explicit(cancelled, memory_order_relaxed)) {
    uint64_t state = atomic_load(&sum->state), at = pieces_of(state) * XT_CHECKSUM_PIECE;
    if (at >= to) return;
    bool is_near = at < atomic_load(&sum->reached) + (uint64_t)AHEAD * XT_CHECKSUM_PIECE;
    if (is_near) process_piece(sum, state);
    if (!xt_background_pause(is_near ? 0 : PAUSE_US)) return;
  }
}

static void end_job(void *subject) {
  xt_checksum *sum = subject;
  sum->keeper.drop(sum->keeper.owner);
  release(sum);
}

/* ---- Writer ---- */

xt_checksum *xt_checksum_new(const uint8_t *data, size_t size, xt_owner keeper) {
  xt_checksum *sum = !xt_background_enabled(XT_BACKGROUND_checksum) ? NULL : malloc(sizeof *sum);
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
  if (!xt_background_submit((xt_background_job){process_ahead, end_job, sum, 0, limit < sum->size ? limit : sum->size}))
    end_job(sum);
}

void xt_checksum_reach(xt_checksum *sum, size_t end) {
  if (end > sum->size) end = sum->size;
  atomic_store(&sum->reached, end);
  for (uint64_t state; pieces_of(state = atomic_load(&sum->state)) * XT_CHECKSUM_PIECE < end;)
    process_piece(sum, state);
}

uint32_t xt_checksum_value(const xt_checksum *sum) { return (uint32_t)atomic_load(&sum->state); }

void xt_checksum_free(xt_checksum *sum) {
  if (!sum) return;
  xt_background_cancel(sum);
  release(sum);
}
