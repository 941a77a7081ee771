/* Decoding of single elements to numbers. It does not use LibTorch, so it also covers dtypes that the linked LibTorch
 * does not have. */
#ifndef XT_BASE_ELEMENT_H
#define XT_BASE_ELEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/dtype.h"

typedef enum { XT_ELEMENT_FLOAT, XT_ELEMENT_INT, XT_ELEMENT_UINT, XT_ELEMENT_BOOL, XT_ELEMENT_COMPLEX } xt_element_kind;

typedef struct {
  xt_element_kind kind;
  double re, im; /* a float has only re */
  int64_t i;
  uint64_t u;
} xt_element;

/* Reads the element at data, which is in native byte order and may be unaligned. Quantized and bit types are read as
 * their underlying integers. */
xt_element xt_element_read(xt_dtype dtype, const void *data);

/* Returns the bits of the float16 nearest to value: ties round to even, values that are too large become infinity. */
uint16_t xt_element_half(double value);

/* Checks that value is in the range of an integer or bool dtype. Returns true for all other dtypes. */
bool xt_element_int_fits(xt_dtype dtype, int64_t value);

#endif
