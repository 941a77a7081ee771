#include "core/os/clock.h"

#include <stddef.h>
#include <time.h>

enum { NS_PER_S = 1000000000, US_PER_S = 1000000, NS_PER_US = 1000 };

int64_t xt_clock_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * NS_PER_S + (int64_t)time.tv_nsec;
}

void xt_clock_sleep_us(int64_t microseconds) {
  struct timespec time = {(time_t)(microseconds / US_PER_S), (long)(microseconds % US_PER_S) * NS_PER_US};
  nanosleep(&time, NULL);
}
