/* Decimal formatting of integers without printf, which would dominate the time to write a small tensor. */
#ifndef XT_BASE_DECIMAL_H
#define XT_BASE_DECIMAL_H

#include <stddef.h>
#include <stdint.h>

enum { XT_DECIMAL_DIGITS = 20 }; /* of UINT64_MAX */

/* Writes the digits of number, without a terminating NUL, and returns how many there are. */
static inline size_t xt_decimal(char *to, uint64_t number) {
  char reversed[XT_DECIMAL_DIGITS];
  size_t count = 0;
  do reversed[count++] = (char)('0' + number % 10);
  while (number /= 10);
  for (size_t i = 0; i < count; i++) to[i] = reversed[count - 1 - i];
  return count;
}

#endif
