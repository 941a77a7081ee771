#include "core/base/convert.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "core/base/element.h"

static const xt_dtype small[] = {XT_float16,         XT_bfloat16,        XT_float8_e5m2,   XT_float8_e4m3fn,
                                 XT_float8_e5m2fnuz, XT_float8_e4m3fnuz, XT_float8_e8m0fnu};

static double decode(xt_dtype dtype, uint16_t code) {
  return xt_dtype_get(dtype)->size == 1 ? xt_element_read(dtype, (uint8_t[]){(uint8_t)code}).re
                                        : xt_element_read(dtype, &code).re;
}

static uint32_t codes(xt_dtype dtype) { return xt_dtype_get(dtype)->size == 1 ? 256 : 65536; }

/* Every value of a small float is exact as a float, and becomes itself again. */
static void keeps_what_is_exact(void) {
  for (size_t t = 0; t < COUNT_OF(small); t++)
    for (uint32_t code = 0; code < codes(small[t]); code++) {
      double value = decode(small[t], (uint16_t)code);
      uint16_t back = xt_convert_small(small[t], (float)value);
      if (isnan(value)) CHECK(isnan(decode(small[t], back)));
      else CHECK(back == code);
    }
}

/* Between two neighbors the nearer one is chosen, and in the middle the one with an even code. */
static void rounds_to_the_nearest(void) {
  for (size_t t = 0; t < COUNT_OF(small); t++)
    for (uint32_t code = 0; code + 1 < codes(small[t]) / (small[t] == XT_float8_e8m0fnu ? 1 : 2); code++) {
      double low = decode(small[t], (uint16_t)code), high = decode(small[t], (uint16_t)(code + 1));
      float middle = (float)((low + high) / 2);
      if (!isfinite(low) || !isfinite(high) || !isnormal(middle)) continue;
      CHECK(xt_convert_small(small[t], middle) == code + (code & 1));
      CHECK(xt_convert_small(small[t], nextafterf(middle, 0)) == code);
      CHECK(xt_convert_small(small[t], nextafterf(middle, INFINITY)) == code + 1);
      if (small[t] == XT_float8_e8m0fnu) continue;
      double negative = decode(small[t], xt_convert_small(small[t], -nextafterf(middle, INFINITY)));
      CHECK(negative == -high);
    }
}

/* As in torch: only float16, bfloat16 and float8_e5m2 have an infinity. */
static void overflows_like_torch(void) {
  CHECK(xt_convert_small(XT_float16, 65519) == 0x7bff && xt_convert_small(XT_float16, 65520) == 0x7c00);
  CHECK(xt_convert_small(XT_float16, -INFINITY) == 0xfc00 && xt_convert_small(XT_bfloat16, 3.4e38f) == 0x7f80);
  CHECK(xt_convert_small(XT_float8_e5m2, 61439) == 0x7b && xt_convert_small(XT_float8_e5m2, -1e30f) == 0xfc);
  CHECK(xt_convert_small(XT_float8_e4m3fn, 464) == 0x7e && xt_convert_small(XT_float8_e4m3fn, 465) == 0x7f);
  CHECK(xt_convert_small(XT_float8_e4m3fn, -INFINITY) == 0xff);
  CHECK(xt_convert_small(XT_float8_e4m3fnuz, 247) == 0x7f && xt_convert_small(XT_float8_e4m3fnuz, -248) == 0x80);
  CHECK(xt_convert_small(XT_float8_e5m2fnuz, INFINITY) == 0x80 && xt_convert_small(XT_float8_e5m2fnuz, -0.0f) == 0);
  CHECK(xt_convert_small(XT_float8_e8m0fnu, INFINITY) == 255 && xt_convert_small(XT_float8_e8m0fnu, -4) == 129);
}

static double convert(xt_dtype from, const void *source, xt_dtype to) {
  uint8_t out[16];
  xt_convert(from, source, to, out, 1);
  xt_element element = xt_element_read(to, out);
  return element.kind == XT_ELEMENT_FLOAT || element.kind == XT_ELEMENT_COMPLEX ? element.re
         : element.kind == XT_ELEMENT_UINT                                      ? (double)element.u
                                                                                : (double)element.i;
}

static void converts_integers(void) {
  CHECK(convert(XT_int64, (int64_t[]){300}, XT_uint8) == 44 && convert(XT_int64, (int64_t[]){-1}, XT_uint16) == 65535);
  CHECK(convert(XT_uint64, (uint64_t[]){UINT64_MAX}, XT_float64) == 0x1p64);
  CHECK(convert(XT_uint64, (uint64_t[]){UINT64_MAX}, XT_float32) == 0x1p64);
  /* rounded once: by way of a double it would be 2^60 */
  CHECK(convert(XT_int64, (int64_t[]){(1ll << 60) + (1ll << 36) + 1}, XT_float32) == 0x1p60 + 0x1p37);
  CHECK(convert(XT_int32, (int32_t[]){-7}, XT_int8) == -7 && convert(XT_int16, (int16_t[]){0}, XT_bool) == 0);
  CHECK(convert(XT_uint8, (uint8_t[]){200}, XT_complex64) == 200 && convert(XT_bool, (uint8_t[]){5}, XT_int32) == 1);
}

static void converts_floats(void) {
  CHECK(convert(XT_float64, (double[]){-2.9}, XT_int32) == -2 && convert(XT_float32, (float[]){0.5f}, XT_bool) == 1);
  CHECK(convert(XT_float64, (double[]){NAN}, XT_int64) == -0x1p63 &&
        convert(XT_float64, (double[]){1e30}, XT_int8) == 0);
  CHECK(convert(XT_float64, (double[]){1e300}, XT_float32) == INFINITY);
  CHECK(convert(XT_float32, (float[]){NAN}, XT_bool) == 1 &&
        convert(XT_float16, (uint16_t[]){0x0001}, XT_float32) == 0x1p-24);
  CHECK(convert(XT_complex128, (double[]){1.5, 2.5}, XT_float16) == 1.5);
  CHECK(convert(XT_complex64, (float[]){0, 1}, XT_bool) == 1 && convert(XT_complex64, (float[]){3, 1}, XT_int8) == 3);
  uint8_t out[16];
  xt_convert(XT_complex64, (float[]){1, -2}, XT_complex32, out, 1);
  CHECK(xt_element_read(XT_complex32, out).im == -2);
  xt_convert(XT_complex32, out, XT_complex128, out, 0);
}

/* More elements than are converted at a time, from and to addresses without alignment. */
static void converts_many(void) {
  enum { N = 3 * XT_NUMBERS + 7 };
  static uint8_t from[1 + 4 * N], to[1 + 2 * N];
  for (int i = 0; i < N; i++) memcpy(from + 1 + 4 * i, &(float){(float)(i % 2048) / 2}, 4);
  xt_convert(XT_float32, from + 1, XT_float16, to + 1, N);
  for (int i = 0; i < N; i++) CHECK(xt_element_read(XT_float16, to + 1 + 2 * i).re == (i % 2048) / 2.0);
}

/* Every pair of dtypes that are numbers, with a value that all of them have. */
static void converts_every_pair(void) {
  for (int a = 0; a < XT_DTYPE_COUNT; a++)
    for (int b = 0; b < XT_DTYPE_COUNT; b++) {
      uint8_t first[16], second[16];
      if (!xt_convert_supported((xt_dtype)a) || !xt_convert_supported((xt_dtype)b)) continue;
      xt_convert(XT_int64, (int64_t[]){1}, (xt_dtype)a, first, 1);
      xt_convert((xt_dtype)a, first, (xt_dtype)b, second, 1);
      CHECK(convert((xt_dtype)b, second, XT_float64) == 1);
    }
  CHECK(!xt_convert_supported(XT_bits8) && !xt_convert_supported(XT_quint4x2) && xt_convert_supported(XT_qint8));
}

int main(void) {
  return RUN_TESTS("convert", keeps_what_is_exact, rounds_to_the_nearest, overflows_like_torch, converts_integers,
                   converts_floats, converts_many, converts_every_pair);
}
