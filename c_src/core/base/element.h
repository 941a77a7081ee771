/* One element as a number, whatever its dtype: the bytes are decoded here, so that dtypes the linked LibTorch
 * does not know can be shown as well. */
#ifndef XT_BASE_ELEMENT_H
#define XT_BASE_ELEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/dtype.h"

typedef enum { XT_ELEMENT_FLOAT, XT_ELEMENT_INT, XT_ELEMENT_UINT, XT_ELEMENT_BOOL, XT_ELEMENT_COMPLEX } xt_element_kind;

typedef struct {
  xt_element_kind kind;
  double re, im; /* float: re */
  int64_t i;
  uint64_t u;
} xt_element;

/* Reads the element at data, native byte order, any alignment. Quantized and bit types read as their integers. */
xt_element xt_element_read(xt_dtype dtype, const void *data);

/* The nearest half of a number, ties to even; infinity where it is too large. */
uint16_t xt_element_half(double value);

/* Does the integer fit the (integer or bool) dtype? */
bool xt_element_int_fits(xt_dtype dtype, int64_t value);

#endif
