#include "core/tensor/statistics.h"

#include <math.h>

#include "core/base/convert.h"

static size_t part_of(size_t count, size_t done) { return count - done < XT_NUMBERS ? count - done : XT_NUMBERS; }

static const char *at(xt_dtype dtype, const void *data, size_t index) {
  return (const char *)data + index * xt_dtype_get(dtype)->size;
}

/* ---- Values ---- */

static double real_part(const xt_numbers *numbers, size_t n) {
  switch (numbers->kind) {
  case XT_KIND_FLOAT:
  case XT_KIND_COMPLEX: return numbers->re[n];
  case XT_KIND_UINT: return (double)(uint64_t)numbers->i[n];
  default: return (double)numbers->i[n];
  }
}

static double imaginary_part(const xt_numbers *numbers, size_t n) {
  return numbers->kind == XT_KIND_COMPLEX ? numbers->im[n] : 0;
}

/* It is infinite if a part is, as in torch, even if the other one is NaN. */
static double absolute(double re, double im) { return im == 0 ? fabs(re) : hypot(re, im); }

static double value_of(const xt_numbers *numbers, size_t n) {
  return numbers->kind == XT_KIND_COMPLEX ? absolute(numbers->re[n], numbers->im[n]) : real_part(numbers, n);
}

/* ---- Statistics ---- */

/* Keeps the finite values, at most XT_NUMBERS, and counts the others. */
static size_t keep_finite(const xt_numbers *numbers, size_t count, xt_statistics *out, double *values) {
  size_t kept = 0;
  for (size_t n = 0; n < count; n++) {
    double value = value_of(numbers, n);
    if (isfinite(value)) values[kept++] = value;
    else if (isnan(value)) out->nan++;
    else out->infinite++;
    out->zeros += value == 0;
  }
  return kept;
}

/* Adds some values: their mean and squared distances first, then both means together (Chan's formula). */
static void add_values(const double *values, size_t count, xt_statistics *out) {
  double sum = 0, mean, m2 = 0, old = (double)out->finite, added = (double)count;
  for (size_t n = 0; n < count; n++) {
    sum += values[n];
    if (values[n] < out->min) out->min = values[n];
    if (values[n] > out->max) out->max = values[n];
  }
  mean = sum / added;
  for (size_t n = 0; n < count; n++) m2 += (values[n] - mean) * (values[n] - mean);
  if (!out->finite) out->mean = mean; /* else the square of a large mean would count, times nothing */
  double delta = mean - out->mean;
  out->mean += delta * added / (old + added);
  out->m2 += m2 + delta * delta * old * added / (old + added);
  out->finite += (int64_t)count;
}

void xt_statistics_of(xt_dtype dtype, const void *data, size_t count, xt_statistics *out) {
  xt_numbers numbers;
  double values[XT_NUMBERS];
  *out = (xt_statistics){.min = INFINITY, .max = -INFINITY};
  for (size_t done = 0; done < count; done += XT_NUMBERS) {
    size_t part = part_of(count, done);
    xt_numbers_read(&numbers, dtype, at(dtype, data, done), part);
    size_t finite = keep_finite(&numbers, part, out, values);
    if (finite) add_values(values, finite, out);
  }
}

/* Halves are used, because the difference of two doubles may be too large for one. */
void xt_statistics_histogram(xt_dtype dtype, const void *data, size_t count, double low, double high, size_t bins,
                             int64_t *counts) {
  xt_numbers numbers;
  double width = high / 2 - low / 2;
  for (size_t done = 0; done < count; done += XT_NUMBERS) {
    size_t part = part_of(count, done);
    xt_numbers_read(&numbers, dtype, at(dtype, data, done), part);
    for (size_t n = 0; n < part; n++) {
      double value = value_of(&numbers, n);
      if (!(value >= low && value <= high)) continue;
      double place = width > 0 ? (value / 2 - low / 2) / width * (double)bins : 0;
      size_t bin = place < (double)bins ? (size_t)place : bins - 1;
      counts[bin]++;
    }
  }
}

/* ---- Differences ---- */

/* Whether both are integers that an int64, or both a uint64, holds: a double has only 53 bits. */
static bool are_integers(xt_dtype a, xt_dtype b) {
  xt_kind x = xt_dtype_get(a)->kind, y = xt_dtype_get(b)->kind;
  bool integers = (x == XT_KIND_INT || x == XT_KIND_UINT) && (y == XT_KIND_INT || y == XT_KIND_UINT);
  return integers && (a == b || (a != XT_uint64 && b != XT_uint64));
}

static void compare_one(const xt_numbers *a, const xt_numbers *b, size_t n, bool integers,
                        const xt_tolerance *tolerance, xt_difference *out) {
  double a_re = real_part(a, n), a_im = imaginary_part(a, n), b_re = real_part(b, n), b_im = imaginary_part(b, n);
  bool a_nan = isnan(a_re) || isnan(a_im), b_nan = isnan(b_re) || isnan(b_im);
  bool equal = integers ? a->i[n] == b->i[n] : a_re == b_re && a_im == b_im;
  if (equal || (tolerance->equal_nan && a_nan && b_nan)) return;
  out->differing++;
  if (a_nan || b_nan) {
    out->nan++;
    out->beyond++;
    return;
  }
  double distance = absolute(a_re - b_re, a_im - b_im);
  if (integers && distance < 1) distance = 1; /* their doubles may be equal */
  double allowed = tolerance->atol + tolerance->rtol * absolute(b_re, b_im);
  out->beyond += !(distance <= allowed && isfinite(distance));
  if (distance > out->max) out->max = distance;
  out->sum += distance;
}

void xt_statistics_compare(xt_dtype a, const void *a_data, xt_dtype b, const void *b_data, size_t count,
                           const xt_tolerance *tolerance, xt_difference *out) {
  xt_numbers x, y;
  bool integers = are_integers(a, b);
  *out = (xt_difference){.max = 0};
  for (size_t done = 0; done < count; done += XT_NUMBERS) {
    size_t part = part_of(count, done);
    xt_numbers_read(&x, a, at(a, a_data, done), part);
    xt_numbers_read(&y, b, at(b, b_data, done), part);
    for (size_t n = 0; n < part; n++) compare_one(&x, &y, n, integers, tolerance, out);
  }
}
