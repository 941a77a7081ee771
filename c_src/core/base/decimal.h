/* Numbers in digits: printf takes longer than all the rest of a small tensor. */
#ifndef XT_BASE_DECIMAL_H
#define XT_BASE_DECIMAL_H

#include <stddef.h>
#include <stdint.h>

enum { XT_DECIMAL_MOST = 20 };

/* Writes them without an end, and tells how many. */
static inline size_t xt_decimal(char *to, uint64_t number) {
  char reversed[XT_DECIMAL_MOST];
  size_t count = 0;
  do reversed[count++] = (char)('0' + number % 10);
  while (number /= 10);
  for (size_t i = 0; i < count; i++) to[i] = reversed[count - 1 - i];
  return count;
}

#endif
