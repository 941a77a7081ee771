#include "core/tensor/statistics.h"

#include <math.h>

#include "check.h"
#include "core/base/convert.h"

static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * (1 + fabs(b)); }

static void describes_numbers(void) {
  xt_statistics s;
  xt_statistics_of(XT_int64, (int64_t[]){1, 2, 3, 0}, 4, &s);
  CHECK(s.finite == 4 && s.zeros == 1 && s.min == 0 && s.max == 3 && s.mean == 1.5 && near(s.m2, 5));
  xt_statistics_of(XT_float32, (float[]){NAN, INFINITY, -INFINITY, -2}, 4, &s);
  CHECK(s.finite == 1 && s.nan == 1 && s.infinite == 2 && s.min == -2 && s.max == -2 && s.m2 == 0);
  xt_statistics_of(XT_complex64, (float[]){3, 4, 0, 0, INFINITY, NAN}, 3, &s);
  CHECK(s.max == 5 && s.zeros == 1 && s.infinite == 1);
  xt_statistics_of(XT_uint64, (uint64_t[]){UINT64_MAX}, 1, &s);
  CHECK(s.max == 0x1p64);
  xt_statistics_of(XT_float64, NULL, 0, &s);
  CHECK(s.finite == 0 && s.min == INFINITY && s.m2 == 0);
  xt_statistics_of(XT_float64, (double[]){1e200, 1e200}, 2, &s);
  CHECK(s.mean == 1e200 && s.m2 == 0);
  xt_statistics_of(XT_float64, (double[]){1.7e308, 1.7e308}, 2, &s);
  CHECK(!isfinite(s.mean) && s.max == 1.7e308);
}

/* Parts of 256 values are put together. */
static void describes_many_numbers(void) {
  enum { N = 5 * XT_NUMBERS + 3 };
  static double values[N];
  double mean = 0, m2 = 0;
  for (int i = 0; i < N; i++) values[i] = 1e6 + sin(i), mean += values[i] / N;
  for (int i = 0; i < N; i++) m2 += pow(values[i] - mean, 2);
  xt_statistics s;
  xt_statistics_of(XT_float64, values, N, &s);
  CHECK(s.finite == N && fabs(s.mean - mean) < 1e-8 && fabs(s.m2 - m2) < 1e-6);
}

static void counts_intervals(void) {
  int64_t counts[3] = {0};
  xt_statistics_histogram(XT_int32, (int32_t[]){0, 1, 2, 3, 9, -9}, 6, 0, 3, 3, counts);
  CHECK(counts[0] == 1 && counts[1] == 1 && counts[2] == 2);
  double wide[] = {-1.7e308, 0.1, 1.7e308, NAN, INFINITY};
  xt_statistics_histogram(XT_float64, wide, 5, -1.7e308, 1.7e308, 2, counts);
  CHECK(counts[0] == 2 && counts[1] == 3);
  xt_statistics_histogram(XT_float64, wide, 2, 0.1, 0.1, 3, counts);
  CHECK(counts[0] == 3);
}

static xt_difference compare(xt_dtype a, const void *x, xt_dtype b, const void *y, size_t n, double rtol, double atol,
                             bool equal_nan) {
  xt_difference d;
  xt_statistics_compare(a, x, b, y, n, &(xt_tolerance){rtol, atol, equal_nan}, &d);
  return d;
}

static void compares(void) {
  float x[] = {1, 2, NAN, NAN, INFINITY, INFINITY}, y[] = {1, 2.5f, NAN, 1, INFINITY, 5};
  xt_difference d = compare(XT_float32, x, XT_float32, y, 6, 0, 0.5, true);
  CHECK(d.differing == 3 && d.beyond == 2 && d.nan == 1 && isinf(d.max) && isinf(d.sum));
  d = compare(XT_float32, x, XT_float32, y, 3, 0, 0.4, false);
  CHECK(d.differing == 2 && d.beyond == 2 && d.nan == 1 && d.max == 0.5 && d.sum == 0.5);
  d = compare(XT_float32, x, XT_float64, (double[]){1, 2}, 2, 0, 0, false);
  CHECK(d.differing == 0);
  d = compare(XT_complex64, (float[]){1, 1}, XT_int8, (int8_t[]){1}, 1, 0, 0, false);
  CHECK(d.differing == 1 && d.max == 1);
  d = compare(XT_float32, (float[]){101}, XT_float32, (float[]){100}, 1, 0.01, 0, false);
  CHECK(d.differing == 1 && d.beyond == 0);
}

/* Their doubles are equal. */
static void compares_large_integers_exactly(void) {
  int64_t x = (1ll << 60) + 1, y = 1ll << 60;
  xt_difference d = compare(XT_int64, &x, XT_int64, &y, 1, 0, 0.5, false);
  CHECK(d.differing == 1 && d.beyond == 1 && d.max == 1);
  d = compare(XT_uint64, (uint64_t[]){UINT64_MAX}, XT_uint64, (uint64_t[]){UINT64_MAX - 1}, 1, 0, 0, false);
  CHECK(d.differing == 1);
  d = compare(XT_uint64, (uint64_t[]){UINT64_MAX}, XT_int64, (int64_t[]){-1}, 1, 0, 0, false);
  CHECK(d.differing == 1 && d.max == 0x1p64);
  d = compare(XT_int32, (int32_t[]){-5}, XT_uint8, (uint8_t[]){5}, 1, 0, 10, false);
  CHECK(d.differing == 1 && d.beyond == 0 && d.max == 10);
}

int main(void) {
  return RUN_TESTS("statistics", describes_numbers, describes_many_numbers, counts_intervals, compares,
                   compares_large_integers_exactly);
}
