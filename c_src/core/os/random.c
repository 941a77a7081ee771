#include "core/os/random.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __APPLE__

void xt_random_fill(void *to, size_t size) { arc4random_buf(to, size); }

#else

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* splitmix64 */
static uint64_t next(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

static void fill_weakly(void *to, size_t size) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  uint64_t state = (uint64_t)time.tv_sec ^ (uint64_t)time.tv_nsec << 32;
  state ^= (uint64_t)getpid() << 16 ^ (uint64_t)(uintptr_t)&time;
  for (size_t done = 0, part; done < size; done += part) {
    uint64_t word = next(&state);
    part = size - done < sizeof word ? size - done : sizeof word;
    memcpy((char *)to + done, &word, part);
  }
}

void xt_random_fill(void *to, size_t size) {
  if (getrandom(to, size, GRND_NONBLOCK) != (ssize_t)size) fill_weakly(to, size);
}

#endif
