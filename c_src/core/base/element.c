#include "core/base/element.h"

#include <math.h>
#include <string.h>

/* Which bit patterns of a small float are special. */
typedef enum {
  IEEE, /* an exponent of all ones is infinity or NaN */
  FN,   /* no infinity; exponent and mantissa of all ones are NaN */
  FNUZ  /* no infinity; the bits of negative zero are NaN; the bias is one higher */
} small_float_rule;

/* Decodes a float with a sign bit and the given numbers of exponent and mantissa bits. */
static double small_float(uint32_t bits, int exponent, int mantissa, small_float_rule rule) {
  uint32_t m = bits & ((1u << mantissa) - 1);
  uint32_t e = (bits >> mantissa) & ((1u << exponent) - 1);
  bool negative = (bits >> (mantissa + exponent)) & 1;
  uint32_t top = (1u << exponent) - 1;
  int bias = (1 << (exponent - 1)) - 1 + (rule == FNUZ);
  double value;

  if (rule == FNUZ && negative && e == 0 && m == 0) return NAN;
  if (rule == FN && e == top && m == (1u << mantissa) - 1) return NAN;
  if (rule == IEEE && e == top) value = m ? NAN : INFINITY;
  else if (e == 0) value = ldexp(m, 1 - bias - mantissa);
  else value = ldexp(m | (1u << mantissa), (int)e - bias - mantissa);
  return negative ? -value : value;
}

static double read_half(const unsigned char *data) {
  uint16_t bits;
  memcpy(&bits, data, sizeof bits);
  return small_float(bits, 5, 10, IEEE);
}

static double read_float(const unsigned char *data) {
  float value;
  memcpy(&value, data, sizeof value);
  return value;
}

static double read_double(const unsigned char *data) {
  double value;
  memcpy(&value, data, sizeof value);
  return value;
}

static double read_bfloat(const unsigned char *data) {
  unsigned char wide[4] = {0, 0, data[0], data[1]};
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  wide[0] = data[0], wide[1] = data[1], wide[2] = wide[3] = 0;
#endif
  return read_float(wide);
}

static double read_e8m0(const unsigned char *data) { return *data == 255 ? NAN : ldexp(1.0, *data - 127); }

static xt_element number(double re) { return (xt_element){XT_ELEMENT_FLOAT, re, 0, 0, 0}; }
static xt_element pair(double re, double im) { return (xt_element){XT_ELEMENT_COMPLEX, re, im, 0, 0}; }

static xt_element integer(const unsigned char *data, size_t size, bool is_signed) {
  uint64_t bits = 0;
  unsigned char raw[8] = {0};
  memcpy(raw, data, size);
  for (size_t i = 0; i < size; i++) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    bits = bits << 8 | raw[i];
#else
    bits |= (uint64_t)raw[i] << (8 * i);
#endif
  }
  if (!is_signed) return (xt_element){XT_ELEMENT_UINT, 0, 0, (int64_t)bits, bits};
  int shift = (int)(64 - 8 * size);
  return (xt_element){XT_ELEMENT_INT, 0, 0, (int64_t)(bits << shift) >> shift, bits};
}

xt_element xt_element_read(xt_dtype dtype, const void *memory) {
  const unsigned char *data = memory;
  const xt_dtype_info *info = xt_dtype_get(dtype);

  switch (dtype) {
  case XT_float64: return number(read_double(data));
  case XT_float32: return number(read_float(data));
  case XT_float16: return number(read_half(data));
  case XT_bfloat16: return number(read_bfloat(data));
  case XT_float8_e5m2: return number(small_float(*data, 5, 2, IEEE));
  case XT_float8_e4m3fn: return number(small_float(*data, 4, 3, FN));
  case XT_float8_e5m2fnuz: return number(small_float(*data, 5, 2, FNUZ));
  case XT_float8_e4m3fnuz: return number(small_float(*data, 4, 3, FNUZ));
  case XT_float8_e8m0fnu: return number(read_e8m0(data));
  case XT_complex32: return pair(read_half(data), read_half(data + 2));
  case XT_complex64: return pair(read_float(data), read_float(data + 4));
  case XT_complex128: return pair(read_double(data), read_double(data + 8));
  case XT_bool: return (xt_element){XT_ELEMENT_BOOL, 0, 0, *data != 0, *data != 0};
  case XT_qint8:
  case XT_qint32: return integer(data, info->size, true);
  default: return integer(data, info->size, info->kind == XT_KIND_INT);
  }
}

bool xt_element_int_fits(xt_dtype dtype, int64_t value) {
  const xt_dtype_info *info = xt_dtype_get(dtype);
  int bits = (int)(8 * info->size);

  if (info->kind == XT_KIND_BOOL) return value == 0 || value == 1;
  if (info->kind == XT_KIND_UINT) return value >= 0 && (bits == 64 || value >> bits == 0);
  if (info->kind != XT_KIND_INT || bits == 64) return true;
  return value >= -((int64_t)1 << (bits - 1)) && value < (int64_t)1 << (bits - 1);
}

uint16_t xt_element_half(double value) {
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  double size = fabs(value);
  if (isnan(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size == 0) return sign; /* frexp gives 0 the exponent 0 */
  int exponent;
  frexp(size, &exponent);
  if (exponent < -13) exponent = -13; /* subnormals have the step of the smallest normals */
  double steps = nearbyint(ldexp(size, 11 - exponent));
  /* A normal value is 1024 to 2048 steps of 2^(exponent - 11). Adding 2048 carries into the exponent, as it should. */
  int biased = exponent + 13;
  return (uint16_t)(sign | (uint16_t)((biased << 10) + (int)steps));
}
