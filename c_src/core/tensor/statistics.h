/* Statistics of elements, and of the differences between two runs of elements. They need no LibTorch. */
#ifndef XT_TENSOR_STATISTICS_H
#define XT_TENSOR_STATISTICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/dtype.h"

/* Complex numbers count by their absolute value. `min`, `max`, `mean` and `m2`, the sum of the squared distances from
 * the mean, are those of the finite values; `mean` and `m2` are not finite if they exceed a double. */
typedef struct {
  int64_t finite, nan, infinite, zeros;
  double min, max, mean, m2;
} xt_statistics;

/* The dtype must be one that xt_convert_supported (base/convert.h) accepts, here and below. */
void xt_statistics_of(xt_dtype dtype, const void *data, size_t count, xt_statistics *out);

/* Adds the numbers of finite values in `bins` intervals of the same width from `low` to `high`, which is part of the
 * last one. Values outside are not counted. */
void xt_statistics_histogram(xt_dtype dtype, const void *data, size_t count, double low, double high, size_t bins,
                             int64_t *counts);

/* Two values are close if they are equal, or if |a - b| <= atol + rtol * |b|. An infinity is only close to itself. */
typedef struct {
  double rtol, atol;
  bool equal_nan; /* NaN is equal to NaN */
} xt_tolerance;

typedef struct {
  int64_t differing; /* not equal */
  int64_t beyond;    /* not close */
  int64_t nan;       /* NaN on one side only, or on both if they are not equal; not in max and sum */
  double max, sum;   /* of the absolute differences */
} xt_difference;

/* Compares elements as doubles or complex numbers. Integers are equal only if they are exactly equal. */
void xt_statistics_compare(xt_dtype a, const void *a_data, xt_dtype b, const void *b_data, size_t count,
                           const xt_tolerance *tolerance, xt_difference *out);

#endif
