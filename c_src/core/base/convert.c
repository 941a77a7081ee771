#include "core/base/convert.h"

#include <math.h>
#include <string.h>

#include "core/base/element.h"

bool xt_convert_supported(xt_dtype dtype) {
  const xt_dtype_info *info = xt_dtype_get(dtype);
  return info->kind != XT_KIND_BITS && !info->packed;
}

/* ---- Small floats ---- */

static uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

typedef struct {
  uint32_t mantissa, bias; /* bits of the mantissa; bias of the exponent */
  uint32_t overflow, nan;  /* codes; values that are too large become `overflow` */
  uint32_t sign;           /* the sign bit */
  bool fnuz;               /* no negative zero, and one NaN, which has the sign bit alone */
} small_float;

/* Rounds by integer addition to the mantissa, which carries into the exponent as it should. Subnormal results are
 * rounded by the addition of a float whose last bit is the smallest subnormal. */
static uint16_t encode(const small_float *type, float value) {
  uint32_t bits = float_bits(value), size = bits & 0x7fffffff, sign = bits >> 31 ? type->sign : 0, code;
  uint32_t drop = 23 - type->mantissa;
  if (size > 0x7f800000) return (uint16_t)(type->fnuz ? type->nan : type->nan | sign);
  if (size < (128 - type->bias) << 23) {
    uint32_t magic = (151 - type->bias - type->mantissa) << 23;
    code = float_bits(bits_float(size) + bits_float(magic)) - magic;
  } else {
    code = (size - ((127 - type->bias) << 23) + (1u << (drop - 1)) - 1 + (size >> drop & 1)) >> drop;
  }
  if (code >= type->overflow) return (uint16_t)(type->fnuz ? type->overflow : type->overflow | sign);
  return (uint16_t)(type->fnuz && !code ? 0 : code | sign);
}

static uint16_t encode_bfloat(float value) {
  uint32_t bits = float_bits(value);
  if (isnan(value)) return 0x7fc0;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A power of two without a sign. A value in the middle of two exponents becomes the even one. */
static uint16_t encode_e8m0(float value) {
  uint32_t bits = float_bits(value), exponent = bits >> 23 & 255, rest = bits & 0x7fffff;
  if (exponent == 255) return 255;
  return (uint16_t)(exponent + (rest > 0x400000 || (rest == 0x400000 && (exponent & 1))));
}

uint16_t xt_convert_small(xt_dtype dtype, float value) {
  static const small_float half = {10, 15, 0x7c00, 0x7e00, 0x8000, false}, e5m2 = {2, 15, 0x7c, 0x7f, 0x80, false},
                           e4m3fn = {3, 7, 0x7f, 0x7f, 0x80, false}, e5m2fnuz = {2, 16, 0x80, 0x80, 0x80, true},
                           e4m3fnuz = {3, 8, 0x80, 0x80, 0x80, true};
  switch (dtype) {
  case XT_float8_e5m2: return encode(&e5m2, value);
  case XT_float8_e4m3fn: return encode(&e4m3fn, value);
  case XT_float8_e5m2fnuz: return encode(&e5m2fnuz, value);
  case XT_float8_e4m3fnuz: return encode(&e4m3fnuz, value);
  case XT_float8_e8m0fnu: return encode_e8m0(value);
  case XT_bfloat16: return encode_bfloat(value);
  default: return encode(&half, value);
  }
}

static float decode_half(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
  if (exponent == 0) return bits_float(float_bits((float)mantissa * 0x1p-24f) | sign);
  return bits_float(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | mantissa << 13);
}

/* ---- Reading ---- */

static bool is_float(xt_kind kind) { return kind == XT_KIND_FLOAT || kind == XT_KIND_COMPLEX; }

static xt_kind number_kind(xt_dtype dtype) {
  xt_kind kind = xt_dtype_get(dtype)->kind;
  if (kind != XT_KIND_QUANT) return kind;
  return dtype == XT_quint8 ? XT_KIND_UINT : XT_KIND_INT;
}

static void read_any(xt_numbers *numbers, xt_dtype dtype, const unsigned char *data, size_t count) {
  size_t size = xt_dtype_get(dtype)->size;
  for (size_t n = 0; n < count; n++) {
    xt_element element = xt_element_read(dtype, data + n * size);
    numbers->i[n] = element.i;
    numbers->re[n] = element.re;
    numbers->im[n] = element.im;
  }
}

void xt_numbers_read(xt_numbers *numbers, xt_dtype dtype, const void *data, size_t count) {
  const unsigned char *bytes = data;
  float single;
  uint16_t half;
  int32_t word;
  numbers->kind = number_kind(dtype);
  switch (dtype) { /* the usual types, faster */
  case XT_float64: memcpy(numbers->re, data, 8 * count); break;
  case XT_int64:
  case XT_uint64: memcpy(numbers->i, data, 8 * count); break;
  case XT_float32:
    for (size_t n = 0; n < count; n++) memcpy(&single, bytes + 4 * n, 4), numbers->re[n] = (double)single;
    break;
  case XT_float16:
    for (size_t n = 0; n < count; n++) memcpy(&half, bytes + 2 * n, 2), numbers->re[n] = (double)decode_half(half);
    break;
  case XT_bfloat16:
    for (size_t n = 0; n < count; n++)
      memcpy(&half, bytes + 2 * n, 2), numbers->re[n] = (double)bits_float((uint32_t)half << 16);
    break;
  case XT_int32:
    for (size_t n = 0; n < count; n++) memcpy(&word, bytes + 4 * n, 4), numbers->i[n] = word;
    break;
  default: read_any(numbers, dtype, bytes, count);
  }
}

/* ---- Writing ---- */

static int64_t as_int(const xt_numbers *numbers, size_t n) {
  if (!is_float(numbers->kind)) return numbers->i[n];
  double value = numbers->re[n];
  return value >= -9223372036854775808.0 && value < 9223372036854775808.0 ? (int64_t)value : INT64_MIN;
}

static double as_double(const xt_numbers *numbers, size_t n) {
  if (is_float(numbers->kind)) return numbers->re[n];
  return numbers->kind == XT_KIND_UINT ? (double)(uint64_t)numbers->i[n] : (double)numbers->i[n];
}

/* Integers are rounded once, not by way of a double. */
static float as_float(const xt_numbers *numbers, size_t n) {
  if (is_float(numbers->kind)) return (float)numbers->re[n];
  return numbers->kind == XT_KIND_UINT ? (float)(uint64_t)numbers->i[n] : (float)numbers->i[n];
}

static double imaginary(const xt_numbers *numbers, size_t n) {
  return numbers->kind == XT_KIND_COMPLEX ? numbers->im[n] : 0;
}

static bool is_true(const xt_numbers *numbers, size_t n) {
  return is_float(numbers->kind) ? numbers->re[n] != 0 || imaginary(numbers, n) != 0 : numbers->i[n] != 0;
}

static void write_complex(const xt_numbers *numbers, xt_dtype dtype, unsigned char *to, size_t n) {
  double wide[2] = {as_double(numbers, n), imaginary(numbers, n)};
  float single[2] = {as_float(numbers, n), (float)wide[1]};
  uint16_t half[2] = {xt_convert_small(XT_float16, single[0]), xt_convert_small(XT_float16, single[1])};
  if (dtype == XT_complex128) memcpy(to, wide, sizeof wide);
  else if (dtype == XT_complex64) memcpy(to, single, sizeof single);
  else memcpy(to, half, sizeof half);
}

static void write_int(int64_t value, size_t size, unsigned char *to) {
  int32_t word = (int32_t)value;
  int16_t half = (int16_t)value;
  int8_t byte = (int8_t)value;
  if (size == 8) memcpy(to, &value, 8);
  else if (size == 4) memcpy(to, &word, 4);
  else if (size == 2) memcpy(to, &half, 2);
  else memcpy(to, &byte, 1);
}

void xt_numbers_write(const xt_numbers *numbers, xt_dtype dtype, void *data, size_t count) {
  size_t size = xt_dtype_get(dtype)->size;
  unsigned char *to = data;
  xt_kind kind = number_kind(dtype);
  for (size_t n = 0; n < count; n++, to += size) {
    if (kind == XT_KIND_COMPLEX) {
      write_complex(numbers, dtype, to, n);
    } else if (kind == XT_KIND_BOOL) {
      *to = is_true(numbers, n);
    } else if (kind != XT_KIND_FLOAT) {
      write_int(as_int(numbers, n), size, to);
    } else if (size == 8) {
      memcpy(to, &(double){as_double(numbers, n)}, 8);
    } else if (size == 4) {
      memcpy(to, &(float){as_float(numbers, n)}, 4);
    } else {
      uint16_t bits = xt_convert_small(dtype, as_float(numbers, n));
      if (size == 2) memcpy(to, &bits, 2);
      else *to = (unsigned char)bits;
    }
  }
}

void xt_convert(xt_dtype from, const void *source, xt_dtype to, void *target, size_t count) {
  xt_numbers numbers;
  const unsigned char *read = source;
  unsigned char *write = target;
  for (size_t done = 0; done < count; done += XT_NUMBERS) {
    size_t part = count - done < XT_NUMBERS ? count - done : XT_NUMBERS;
    xt_numbers_read(&numbers, from, read + done * xt_dtype_get(from)->size, part);
    xt_numbers_write(&numbers, to, write + done * xt_dtype_get(to)->size, part);
  }
}
