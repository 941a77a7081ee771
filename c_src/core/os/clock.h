/* The monotonic clock, and sleeping. */
#ifndef XT_OS_CLOCK_H
#define XT_OS_CLOCK_H

#include <stdint.h>

/* Returns the nanoseconds since an unspecified start. The value never decreases. */
int64_t xt_clock_ns(void);

/* Sleeps for the given time, or less if a signal arrives. */
void xt_clock_sleep_us(int64_t microseconds);

#endif
