#include "core/base/element.h"

#include <math.h>

#include "check.h"

static double real(xt_dtype dtype, const void *data) { return xt_element_read(dtype, data).re; }

static void reads_floats(void) {
  CHECK(real(XT_float16, (uint8_t[]){0x00, 0x3c}) == 1.0);
  CHECK(real(XT_float16, (uint8_t[]){0x01, 0x00}) == ldexp(1, -24));
  CHECK(isinf(real(XT_float16, (uint8_t[]){0x00, 0xfc})));
  CHECK(real(XT_bfloat16, (uint8_t[]){0x80, 0xbf}) == -1.0);
  CHECK(real(XT_float8_e5m2, (uint8_t[]){0x3c}) == 1.0);
  CHECK(real(XT_float8_e4m3fn, (uint8_t[]){0x7e}) == 448.0);
  CHECK(isnan(real(XT_float8_e4m3fn, (uint8_t[]){0xff})));
  CHECK(isnan(real(XT_float8_e5m2fnuz, (uint8_t[]){0x80})));
  CHECK(real(XT_float8_e4m3fnuz, (uint8_t[]){0x40}) == 1.0);
  CHECK(real(XT_float8_e8m0fnu, (uint8_t[]){127}) == 1.0 && isnan(real(XT_float8_e8m0fnu, (uint8_t[]){255})));
}

static void reads_integers(void) {
  CHECK(xt_element_read(XT_int8, (uint8_t[]){0xff}).i == -1);
  CHECK(xt_element_read(XT_int16, (uint8_t[]){0xfe, 0xff}).i == -2);
  CHECK(xt_element_read(XT_uint64, (uint64_t[]){UINT64_MAX}).u == UINT64_MAX);
  CHECK(xt_element_read(XT_int64, (int64_t[]){INT64_MIN}).i == INT64_MIN);
  CHECK(xt_element_read(XT_qint32, (int32_t[]){-5}).i == -5);
  CHECK(xt_element_read(XT_bool, (uint8_t[]){2}).u == 1);
}

static void reads_complex_numbers(void) {
  xt_element z = xt_element_read(XT_complex32, (uint8_t[]){0x00, 0x3c, 0x00, 0xc0});
  CHECK(z.kind == XT_ELEMENT_COMPLEX && z.re == 1.0 && z.im == -2.0);
}

static void rounds_to_half_precision(void) {
  CHECK(xt_element_half(0) == 0x0000 && xt_element_half(-0.0) == 0x8000);
  CHECK(xt_element_half(1) == 0x3c00 && xt_element_half(-2) == 0xc000);
  CHECK(xt_element_half(65504) == 0x7bff && xt_element_half(65520) == 0x7c00 && xt_element_half(1e300) == 0x7c00);
  CHECK(xt_element_half(ldexp(1, -24)) == 0x0001 && xt_element_half(ldexp(1, -26)) == 0x0000);
  /* Halfway between two halves: the even one. */
  CHECK(xt_element_half(1 + ldexp(1, -11)) == 0x3c00 && xt_element_half(1 + ldexp(3, -11)) == 0x3c02);
}

static void checks_integer_ranges(void) {
  CHECK(xt_element_int_fits(XT_uint8, 255) && !xt_element_int_fits(XT_uint8, 256) &&
        !xt_element_int_fits(XT_uint8, -1));
  CHECK(xt_element_int_fits(XT_int8, -128) && !xt_element_int_fits(XT_int8, 128));
  CHECK(xt_element_int_fits(XT_int64, INT64_MIN) && xt_element_int_fits(XT_float32, 1 << 30));
  CHECK(xt_element_int_fits(XT_uint64, 5) && !xt_element_int_fits(XT_uint64, -5) && !xt_element_int_fits(XT_bool, 2));
}

int main(void) {
  return RUN_TESTS("element", reads_floats, reads_integers, reads_complex_numbers, rounds_to_half_precision,
                   checks_integer_ranges);
}
