/* Numbers and strings that are text lines, as in protocol 0. */
#include <stdlib.h>

#include "core/base/utf8.h"
#include "core/pickle/escape.h"
#include "core/pickle/unpickle_internal.h"

enum {
  MAX_DIGITS = 39000,   /* the time of the conversion grows with the square; Python reads 4,300 digits at most */
  SMALL_DIGITS = 18,    /* always fit in 64 bits */
  CHUNK_DIGITS = 19,    /* the most digits that always fit in an unsigned 64-bit number */
  DIGITS_PER_LIMB = 19, /* a limb has 64 bits */
  MAX_FLOAT = 64
};

/* Reads a line with its carriage return, if it has one. */
static xt_status take_whole_line(xt_unpickler *u, const char **line, size_t *size) {
  const uint8_t *start = u->in.data + u->in.at;
  size_t left = xt_cursor_left(&u->in);
  const uint8_t *end = left ? memchr(start, '\n', left) : NULL;
  if (!end) return xt_unpickler_truncated(u);
  *line = (const char *)start;
  *size = (size_t)(end - start);
  xt_cursor_take(&u->in, *size + 1);
  return XT_STATUS_ok;
}

xt_status xt_unpickler_take_line(xt_unpickler *u, const char **line, size_t *size) {
  xt_status status = take_whole_line(u, line, size);
  if (status == XT_STATUS_ok && *size && (*line)[*size - 1] == '\r') --*size;
  return status;
}

/* ---- Integers ---- */

typedef struct {
  const char *digits;
  size_t count;
  bool negative;
} decimal;

/* Reads a line with an optional sign, digits and an optional L. */
static xt_status take_decimal(xt_unpickler *u, decimal *out) {
  const char *line;
  size_t size;
  xt_status status = xt_unpickler_take_line(u, &line, &size);
  if (status != XT_STATUS_ok) return status;
  if (size && line[size - 1] == 'L') size--;
  out->negative = size && *line == '-';
  if (size && (*line == '-' || *line == '+')) line++, size--;
  for (size_t i = 0; i < size; i++)
    if (line[i] < '0' || line[i] > '9') return xt_unpickler_corrupt(u, "invalid decimal integer");
  if (!size) return xt_unpickler_corrupt(u, "decimal integer without digits");
  out->digits = line;
  out->count = size;
  return XT_STATUS_ok;
}

static uint64_t parse_digits(const char *digits, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; i++) value = value * 10 + (uint64_t)(digits[i] - '0');
  return value;
}

xt_status xt_unpickler_take_index(xt_unpickler *u, uint64_t *index) {
  decimal number = {0};
  xt_status status = take_decimal(u, &number);
  if (status != XT_STATUS_ok) return status;
  if (number.negative) return xt_unpickler_corrupt(u, "negative memo index");
  if (number.count > SMALL_DIGITS) return xt_unpickler_corrupt(u, "memo index is too large");
  *index = parse_digits(number.digits, number.count);
  return status;
}

static uint64_t power_of_ten(size_t exponent) {
  uint64_t power = 1;
  while (exponent--) power *= 10;
  return power;
}

/* limbs = limbs × factor + more. Returns the number of limbs, which grows by at most one. */
static size_t multiply(uint64_t *limbs, size_t count, uint64_t factor, uint64_t more) {
  for (size_t i = 0; i < count; i++) {
    __extension__ unsigned __int128 product = (unsigned __int128)limbs[i] * factor + more;
    limbs[i] = (uint64_t)product;
    more = (uint64_t)(product >> 64);
  }
  if (more) limbs[count++] = more;
  return count;
}

/* Writes limbs as little-endian two's complement, with one byte more than the magnitude for the sign. */
static size_t put_limbs(const uint64_t *limbs, size_t count, bool negative, uint8_t *to) {
  unsigned carry = 1;
  for (size_t i = 0; i < 8 * count + 1; i++) {
    uint8_t byte = 0;
    if (i < 8 * count) byte = (uint8_t)(limbs[i / 8] >> (8 * (i % 8)));
    unsigned value = negative ? (uint8_t)~byte + carry : byte;
    carry = value >> 8;
    to[i] = (uint8_t)value;
  }
  return 8 * count + 1;
}

static xt_status push_big(xt_unpickler *u, const decimal *number) {
  if (number->count > MAX_DIGITS)
    return xt_error_at(u->error, XT_STATUS_unsupported, u->rebuild->at,
                       "unsupported pickle: decimal integer of %zu digits, at most %d are supported; save it with "
                       "pickle protocol 2 or newer",
                       number->count, MAX_DIGITS);
  size_t room = number->count / DIGITS_PER_LIMB + 2, count = 0, at = number->count % CHUNK_DIGITS;
  uint64_t *limbs = xt_arena_alloc(u->arena, room, sizeof *limbs);
  uint8_t *bytes = xt_arena_alloc(u->arena, room + 1, sizeof *limbs);
  if (!limbs || !bytes) return xt_unpickler_no_memory(u);
  count = multiply(limbs, 0, 0, parse_digits(number->digits, at));
  for (; at < number->count; at += CHUNK_DIGITS)
    count = multiply(limbs, count, power_of_ten(CHUNK_DIGITS), parse_digits(number->digits + at, CHUNK_DIGITS));
  size_t size = put_limbs(limbs, count, number->negative, bytes);
  if (count > 1) return xt_unpickler_push_bytes(u, XT_NODE_BIG, (const char *)bytes, size);
  uint64_t value = count ? limbs[0] : 0;
  if (number->negative ? value <= (uint64_t)INT64_MAX + 1 : value <= INT64_MAX)
    return xt_unpickler_push_int(u, number->negative ? (int64_t)(0 - value) : (int64_t)value);
  return xt_unpickler_push_bytes(u, XT_NODE_BIG, (const char *)bytes, size);
}

xt_status xt_unpickler_push_decimal(xt_unpickler *u, bool may_be_bool) {
  decimal number = {0};
  xt_status status = take_decimal(u, &number);
  if (status != XT_STATUS_ok) return status;
  while (number.count > SMALL_DIGITS && *number.digits == '0') number.digits++, number.count--;
  if (number.count > SMALL_DIGITS) return push_big(u, &number);
  int64_t value = (int64_t)parse_digits(number.digits, number.count);
  if (may_be_bool && number.count == 2 && value <= 1 && !number.negative)
    return xt_unpickler_push(u, value ? u->true_ : u->false_);
  return xt_unpickler_push_int(u, number.negative ? -value : value);
}

/* ---- Floats and strings ---- */

xt_status xt_unpickler_push_decimal_float(xt_unpickler *u) {
  const char *line;
  size_t size;
  char copy[MAX_FLOAT], *end;
  xt_status status = xt_unpickler_take_line(u, &line, &size);
  if (status != XT_STATUS_ok) return status;
  if (!size || size >= sizeof copy) return xt_unpickler_corrupt(u, "invalid decimal float");
  memcpy(copy, line, size);
  copy[size] = 0;
  double value = strtod(copy, &end);
  return end != copy + size ? xt_unpickler_corrupt(u, "invalid decimal float") : xt_unpickler_push_double(u, value);
}

/* STRING has quotes and is Python 2's; UNICODE is the whole line. */
xt_status xt_unpickler_push_line(xt_unpickler *u, bool unicode) {
  const char *line = NULL;
  size_t size = 0, length;
  xt_status status = unicode ? take_whole_line(u, &line, &size) : xt_unpickler_take_line(u, &line, &size);
  if (status != XT_STATUS_ok) return status;
  if (!unicode) {
    if (size < 2 || (line[0] != '\'' && line[0] != '"') || line[size - 1] != line[0])
      return xt_unpickler_corrupt(u, "string is not enclosed in quotes");
    line++, size -= 2;
  }
  char *text = xt_arena_alloc(u->arena, size, 2);
  if (!text) return xt_unpickler_no_memory(u);
  if (!(unicode ? xt_escape_unicode : xt_escape_string)(line, size, text, &length))
    return xt_unpickler_corrupt(u, "invalid escape sequence");
  xt_utf8 check = xt_utf8_check((const uint8_t *)text, length);
  xt_node_kind kind = check == XT_UTF8_VALID ? XT_NODE_TEXT : unicode ? XT_NODE_RAW_TEXT : XT_NODE_BYTES;
  return xt_unpickler_push_bytes(u, kind, text, length);
}
