/* Numbers and strings: first the binary opcodes, then the text lines of protocol 0. */
#include <errno.h>
#include <stdlib.h>

#include "core/base/utf8.h"
#include "core/pickle/escape.h"
#include "core/pickle/unpickle_internal.h"

enum { MAX_LINE = 1 << 20 };

xt_status xt_unpickler_push_int(xt_unpickler *u, int64_t value) {
  bool small = value >= 0 && value < 256;
  if (small && u->small_ints[value]) return xt_unpickler_push(u, u->small_ints[value]);
  xt_status status = xt_unpickler_push_new(u, XT_NODE_INT);
  if (status != XT_STATUS_ok) return status;
  xt_unpickler_top(u)->integer = value;
  if (small) u->small_ints[value] = xt_unpickler_top(u);
  return status;
}

static xt_status push_bytes(xt_unpickler *u, xt_node_kind kind, const char *data, size_t size) {
  xt_status status = xt_unpickler_push_new(u, kind);
  if (status != XT_STATUS_ok) return status;
  xt_unpickler_top(u)->text.data = data;
  xt_unpickler_top(u)->text.size = size;
  return status;
}

xt_status xt_unpickler_push_text(xt_unpickler *u, xt_node_kind kind, uint64_t size) {
  if (size > xt_cursor_left(&u->in)) return xt_unpickler_truncated(u);
  const uint8_t *data = xt_cursor_take(&u->in, size);
  if (kind == XT_NODE_TEXT) {
    xt_utf8 check = xt_utf8_check(data, size);
    if (check == XT_UTF8_INVALID) return xt_unpickler_corrupt(u, "string is not valid UTF-8");
    if (check == XT_UTF8_SURROGATES) kind = XT_NODE_RAW_TEXT;
  }
  return push_bytes(u, kind, (const char *)data, size);
}

/* Python 2 strings: text if they are valid UTF-8, otherwise bytes. */
xt_status xt_unpickler_push_string(xt_unpickler *u, uint64_t size) {
  bool text = size <= xt_cursor_left(&u->in) && xt_utf8_check(u->in.data + u->in.at, size) == XT_UTF8_VALID;
  return xt_unpickler_push_text(u, text ? XT_NODE_TEXT : XT_NODE_BYTES, size);
}

xt_status xt_unpickler_push_long(xt_unpickler *u, uint64_t size) {
  if (size > xt_cursor_left(&u->in)) return xt_unpickler_truncated(u);
  const uint8_t *bytes = xt_cursor_take(&u->in, size);
  if (size > 8) return push_bytes(u, XT_NODE_BIG, (const char *)bytes, size);
  uint64_t value = size && bytes[size - 1] & 0x80 ? ~0ull : 0;
  for (size_t i = size; i-- > 0;) value = value << 8 | bytes[i];
  return xt_unpickler_push_int(u, (int64_t)value);
}

static xt_status push_double(xt_unpickler *u, double value) {
  xt_status status = xt_unpickler_push_new(u, XT_NODE_FLOAT);
  if (status == XT_STATUS_ok) xt_unpickler_top(u)->number = value;
  return status;
}

xt_status xt_unpickler_push_float(xt_unpickler *u) {
  const uint8_t *bytes = xt_cursor_take(&u->in, 8);
  if (!bytes) return xt_unpickler_truncated(u);
  uint64_t bits = 0;
  double value;
  for (int i = 0; i < 8; i++) bits = bits << 8 | bytes[i]; /* big-endian */
  memcpy(&value, &bits, 8);
  return push_double(u, value);
}

/* ---- Text lines ---- */

xt_status xt_unpickler_take_line(xt_unpickler *u, const char **line, size_t *size) {
  const uint8_t *start = u->in.data + u->in.at;
  size_t left = xt_cursor_left(&u->in);
  const uint8_t *end = memchr(start, '\n', left < MAX_LINE ? left : MAX_LINE);
  if (!end && left < MAX_LINE) return xt_unpickler_truncated(u);
  if (!end) return xt_unpickler_corrupt(u, "text line is longer than %d bytes", MAX_LINE);
  *line = (const char *)start;
  *size = (size_t)(end - start);
  xt_cursor_take(&u->in, *size + 1);
  if (*size && (*line)[*size - 1] == '\r') --*size;
  return XT_STATUS_ok;
}

xt_status xt_unpickler_take_decimal(xt_unpickler *u, int64_t *value, bool *boolean) {
  const char *line;
  size_t size;
  char copy[64], *end;
  xt_status status = xt_unpickler_take_line(u, &line, &size);
  if (status != XT_STATUS_ok) return status;
  if (size && line[size - 1] == 'L') size--;
  if (!size || size >= sizeof copy)
    return xt_error_at(u->error, XT_STATUS_unsupported, u->rebuild->at,
                       "unsupported pickle: decimal integer of %zu digits; 1 to %zu are supported", size,
                       sizeof copy - 1);
  memcpy(copy, line, size);
  copy[size] = 0;
  errno = 0;
  *value = strtoll(copy, &end, 10);
  if (*end) return xt_unpickler_corrupt(u, "invalid decimal integer");
  if (errno) return xt_unpickler_corrupt(u, "decimal integer does not fit in 64 bits");
  if (boolean) *boolean = size == 2 && copy[0] == '0' && *value <= 1 && *value >= 0;
  return XT_STATUS_ok;
}

xt_status xt_unpickler_push_decimal(xt_unpickler *u, bool may_be_bool) {
  int64_t value;
  bool boolean = false;
  xt_status status = xt_unpickler_take_decimal(u, &value, &boolean);
  if (status != XT_STATUS_ok) return status;
  if (may_be_bool && boolean) return xt_unpickler_push(u, value ? u->true_ : u->false_);
  return xt_unpickler_push_int(u, value);
}

xt_status xt_unpickler_push_decimal_float(xt_unpickler *u) {
  const char *line;
  size_t size;
  char copy[64], *end;
  xt_status status = xt_unpickler_take_line(u, &line, &size);
  if (status != XT_STATUS_ok) return status;
  if (!size || size >= sizeof copy) return xt_unpickler_corrupt(u, "invalid decimal float");
  memcpy(copy, line, size);
  copy[size] = 0;
  double value = strtod(copy, &end);
  return *end ? xt_unpickler_corrupt(u, "invalid decimal float") : push_double(u, value);
}

/* STRING has quotes and is Python 2's; UNICODE is the whole line. */
xt_status xt_unpickler_push_line(xt_unpickler *u, bool unicode) {
  const char *line;
  size_t size, length;
  xt_status status = xt_unpickler_take_line(u, &line, &size);
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
  return push_bytes(u, kind, text, length);
}
