/* Numbers and strings of the binary opcodes. */
#include "core/base/utf8.h"
#include "core/pickle/unpickle_internal.h"

xt_status xt_unpickler_push_int(xt_unpickler *u, int64_t value) {
  bool small = value >= 0 && value < 256;
  if (small && u->small_ints[value]) return xt_unpickler_push(u, u->small_ints[value]);
  xt_status status = xt_unpickler_push_new(u, XT_NODE_INT);
  if (status != XT_STATUS_ok) return status;
  xt_unpickler_top(u)->integer = value;
  if (small) u->small_ints[value] = xt_unpickler_top(u);
  return status;
}

xt_status xt_unpickler_push_bytes(xt_unpickler *u, xt_node_kind kind, const char *data, size_t size) {
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
  return xt_unpickler_push_bytes(u, kind, (const char *)data, size);
}

/* Python 2 strings: text if they are valid UTF-8, otherwise bytes. */
xt_status xt_unpickler_push_string(xt_unpickler *u, uint64_t size) {
  bool text = size <= xt_cursor_left(&u->in) && xt_utf8_check(u->in.data + u->in.at, size) == XT_UTF8_VALID;
  return xt_unpickler_push_text(u, text ? XT_NODE_TEXT : XT_NODE_BYTES, size);
}

xt_status xt_unpickler_push_long(xt_unpickler *u, uint64_t size) {
  if (size > xt_cursor_left(&u->in)) return xt_unpickler_truncated(u);
  const uint8_t *bytes = xt_cursor_take(&u->in, size);
  if (size > 8) return xt_unpickler_push_bytes(u, XT_NODE_BIG, (const char *)bytes, size);
  uint64_t value = size && bytes[size - 1] & 0x80 ? ~0ull : 0;
  for (size_t i = size; i-- > 0;) value = value << 8 | bytes[i];
  return xt_unpickler_push_int(u, (int64_t)value);
}

xt_status xt_unpickler_push_double(xt_unpickler *u, double value) {
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
  return xt_unpickler_push_double(u, value);
}
