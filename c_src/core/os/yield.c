#include "core/os/yield.h"

#include <sched.h>

#include "core/os/clock.h"

enum {
  SMALL_STEP = 64 << 10, /* about 15 µs of reading */
  LARGE_STEP = 512 << 10,
  MIN_BYTES = 4 << 10, /* a call counts as if it processed at least these */
  ANOTHER_RAN = 2000,  /* ns; without another thread, the system call takes about 1000 */
  KEPT_CPU = 500000    /* ns */
};

static _Thread_local size_t step = SMALL_STEP, left; /* left: bytes until the next yield */
static _Thread_local int64_t next;                   /* the time of the next yield */

static size_t yield(void) {
  int64_t start = xt_clock_ns();
  if (start < next) return LARGE_STEP;
  sched_yield();
  int64_t end = xt_clock_ns(), took = end - start;
  next = took < KEPT_CPU ? end : end + took;
  if (took >= ANOTHER_RAN) step = SMALL_STEP;
  else if (step < LARGE_STEP) step *= 2;
  return step;
}

size_t xt_yield(uint64_t size) {
  uint64_t counted = size < MIN_BYTES ? MIN_BYTES : size;
  if (counted > left) left = yield();
  if (counted > left) counted = left;
  left -= (size_t)counted;
  return (size_t)(size < counted ? size : counted);
}
