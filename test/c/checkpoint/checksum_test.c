#include "core/checkpoint/checksum.h"

#include <libdeflate.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "check.h"
#include "core/os/background.h"
#include "failing.h"

static void keep(void *owner) { atomic_fetch_add((atomic_int *)owner, 1); }
static void drop(void *owner) { atomic_fetch_sub((atomic_int *)owner, 1); }

/* The sum is the same whichever thread computes a piece of it, and the owner of the bytes is released in the end, also
 * when a checksum is freed halfway. */
static void agrees_with_libdeflate(void) {
  enum { LARGEST = 9 << 20 };
  atomic_int kept = 0;
  uint8_t *data = malloc(LARGEST);
  for (size_t i = 0; i < LARGEST; i++) data[i] = (uint8_t)(i * 2654435761u >> 13);
  for (unsigned round = 0; round < 200; round++) {
    size_t size = round % 5 ? (size_t)round * 48611 % LARGEST : LARGEST, at = 0;
    xt_checksum *sum = xt_checksum_new(data, size, (xt_owner){keep, drop, &kept});
    CHECK(sum);
    bool whole = round % 7 != 3;
    size_t goal = whole ? size : size / 2 / XT_CHECKSUM_PIECE * XT_CHECKSUM_PIECE;
    while (at < goal) {
      size_t limit = goal - at < 5 * XT_CHECKSUM_PIECE ? goal : at + 5 * XT_CHECKSUM_PIECE;
      xt_checksum_allow(sum, limit);
      for (; at < limit; at += XT_CHECKSUM_PIECE) xt_checksum_reach(sum, at + XT_CHECKSUM_PIECE);
      /* The background thread has not gone past the limit either. */
      CHECK(xt_checksum_value(sum) == libdeflate_crc32(0, data, at < size ? at : size));
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

static void reports_that_there_is_no_memory(void) {
  static const uint8_t data[100];
  atomic_int kept = 0;
  allocations = 0, fail_at = 0;
  CHECK(!xt_checksum_new(data, sizeof data, (xt_owner){keep, drop, &kept}));
  fail_at = -1;
  CHECK(!atomic_load(&kept));
}

int main(void) { return RUN_TESTS("checksum", agrees_with_libdeflate, reports_that_there_is_no_memory); }
