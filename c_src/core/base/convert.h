/* Conversion of elements between dtypes, with the results of torch's `to`: floats are rounded to the nearest value,
 * ties to even; integers keep their low bits; floats lose their fraction when they become integers; complex numbers
 * lose their imaginary part. What a float that an integer cannot hold becomes is not defined by torch either; here it
 * keeps the low bits of its value as an int64, and 0x8000000000000000 if it does not fit there. */
#ifndef XT_BASE_CONVERT_H
#define XT_BASE_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/dtype.h"

enum { XT_NUMBERS = 256 };

/* Some elements as numbers. Integers and bools are in `i`, a uint64 with the same bits; floats in `re`; complex numbers
 * in `re` and `im`. */
typedef struct {
  xt_kind kind; /* FLOAT, INT, UINT, BOOL or COMPLEX */
  int64_t i[XT_NUMBERS];
  double re[XT_NUMBERS], im[XT_NUMBERS];
} xt_numbers;

/* Whether the elements are single numbers: not packed, and not bits. Quantized types are read and written as their
 * integers. */
bool xt_convert_supported(xt_dtype dtype);

/* Reads and writes up to XT_NUMBERS elements in native byte order, at any address. */
void xt_numbers_read(xt_numbers *numbers, xt_dtype dtype, const void *data, size_t count);
void xt_numbers_write(const xt_numbers *numbers, xt_dtype dtype, void *data, size_t count);

/* Converts `count` contiguous elements. Both dtypes must be supported. */
void xt_convert(xt_dtype from, const void *source, xt_dtype to, void *target, size_t count);

/* Returns the bits of the nearest value of the small float types: float16, bfloat16 and float8. */
uint16_t xt_convert_small(xt_dtype dtype, float value);

#endif
