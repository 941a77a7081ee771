#include "core/checkpoint/crc.h"

/* Polynomials over GF(2) with reflected bits: the highest bit is the coefficient of x^0. */
#define POLYNOMIAL 0xedb88320u
#define ONE (1u << 31)
#define X8 (1u << 23)

/* Multiplies modulo the polynomial of CRC-32. */
static uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = ONE; bit; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
  }
  return product;
}

/* A byte that follows multiplies the CRC by x^8. */
uint32_t xt_crc_shift(uint32_t crc, uint64_t following) {
  uint32_t power = X8;
  for (; following; following >>= 1, power = multiply(power, power))
    if (following & 1) crc = multiply(power, crc);
  return crc;
}
