#include "core/pickle/pickler.h"

#include <string.h>

#include "core/base/utf8.h"

enum { MAX_BYTE = 0xFF, MAX_SHORT = 0xFFFF };

static void byte(xt_pickler *p, uint8_t value) { xt_buffer_byte(&p->out, value); }

void xt_pickler_begin(xt_pickler *p) {
  *p = (xt_pickler){0};
  xt_pickler_put_op(p, XT_OP_PROTO);
  byte(p, 2);
}

void xt_pickler_stop(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_STOP); }

void xt_pickler_free(xt_pickler *p) {
  xt_buffer_free(&p->out);
  xt_table_free(&p->globals);
}

/* ---- Values ---- */

void xt_pickler_put_none(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_NONE); }
void xt_pickler_put_bool(xt_pickler *p, bool value) { xt_pickler_put_op(p, value ? XT_OP_NEWTRUE : XT_OP_NEWFALSE); }

void xt_pickler_put_int(xt_pickler *p, int64_t value) {
  if (value >= 0 && value <= MAX_BYTE) {
    xt_pickler_put_op(p, XT_OP_BININT1);
    byte(p, (uint8_t)value);
  } else if (value >= 0 && value <= MAX_SHORT) {
    xt_pickler_put_op(p, XT_OP_BININT2);
    xt_buffer_le(&p->out, (uint64_t)value, 2);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    xt_pickler_put_op(p, XT_OP_BININT);
    xt_buffer_le(&p->out, (uint32_t)(int32_t)value, 4);
  } else {
    xt_pickler_put_op(p, XT_OP_LONG1);
    byte(p, 8);
    xt_buffer_le(&p->out, (uint64_t)value, 8);
  }
}

/* Writes two's complement with one byte more than the magnitude, so that the sign always fits. */
void xt_pickler_put_big(xt_pickler *p, const uint8_t *magnitude, size_t size, bool negative) {
  size_t length = size + 1;
  if (length <= MAX_BYTE) {
    xt_pickler_put_op(p, XT_OP_LONG1);
    byte(p, (uint8_t)length);
  } else {
    xt_pickler_put_op(p, XT_OP_LONG4);
    xt_buffer_le(&p->out, length, 4);
  }
  uint8_t *to = xt_buffer_reserve(&p->out, length);
  if (!to) return;
  unsigned carry = 1;
  for (size_t i = 0; i < length; i++) {
    uint8_t byte = i < size ? magnitude[i] : 0;
    unsigned value = negative ? (uint8_t)~byte + carry : byte;
    carry = value >> 8;
    to[i] = (uint8_t)value;
  }
  p->out.size += length;
}

void xt_pickler_put_float(xt_pickler *p, double value) {
  uint64_t bits;
  memcpy(&bits, &value, 8);
  xt_pickler_put_op(p, XT_OP_BINFLOAT);
  for (int i = 7; i >= 0; i--) byte(p, (uint8_t)(bits >> (8 * i))); /* big-endian */
}

void xt_pickler_put_text(xt_pickler *p, const char *text, size_t size) {
  xt_pickler_put_op(p, XT_OP_BINUNICODE);
  xt_buffer_le(&p->out, size, 4);
  xt_buffer_put(&p->out, text, size);
}

/* Protocol 2 has no opcode for bytes; Python writes _codecs.encode('…', 'latin1'). */
void xt_pickler_put_bytes(xt_pickler *p, const uint8_t *data, size_t size) {
  size_t length = size;
  for (size_t i = 0; i < size; i++) length += data[i] >= 0x80;
  xt_pickler_put_global(p, "_codecs\nencode\n");
  xt_pickler_put_op(p, XT_OP_BINUNICODE);
  xt_buffer_le(&p->out, length, 4);
  char *to = (char *)xt_buffer_reserve(&p->out, length);
  if (!to) return;
  for (size_t i = 0; i < size; i++) to += xt_utf8_encode(to, data[i]);
  p->out.size += length;
  xt_pickler_put_text(p, "latin1", 6);
  xt_pickler_put_tuple_of(p, 2);
  xt_pickler_put_reduce(p);
}

/* ---- Names ---- */

/* Reads a memo entry; `number` is 1 + its index, or 0 if there is none yet. */
static bool memo_get(xt_pickler *p, size_t number) {
  if (!number) return false;
  if (number - 1 <= MAX_BYTE) {
    xt_pickler_put_op(p, XT_OP_BINGET);
    byte(p, (uint8_t)(number - 1));
  } else {
    xt_pickler_put_op(p, XT_OP_LONG_BINGET);
    xt_buffer_le(&p->out, number - 1, 4);
  }
  return true;
}

void xt_pickler_put_get(xt_pickler *p, uint32_t memo) { memo_get(p, (size_t)memo + 1); }

static void memo_put(xt_pickler *p) {
  if (p->memo <= MAX_BYTE) {
    xt_pickler_put_op(p, XT_OP_BINPUT);
    byte(p, (uint8_t)p->memo);
  } else {
    xt_pickler_put_op(p, XT_OP_LONG_BINPUT);
    xt_buffer_le(&p->out, p->memo, 4);
  }
  p->memo++;
}

void xt_pickler_put_global(xt_pickler *p, const char *text) {
  bool is_new;
  size_t *number = xt_table_put(&p->globals, text, strlen(text), &is_new);
  if (!number) {
    p->out.failed = true;
    return;
  }
  if (memo_get(p, *number)) return;
  xt_pickler_put_op(p, XT_OP_GLOBAL);
  xt_buffer_text(&p->out, text);
  *number = p->memo + 1;
  memo_put(p);
}

void xt_pickler_put_name(xt_pickler *p, const char *module, size_t module_size, const char *name, size_t name_size) {
  xt_pickler_put_op(p, XT_OP_GLOBAL);
  xt_buffer_put(&p->out, module, module_size);
  byte(p, '\n');
  xt_buffer_put(&p->out, name, name_size);
  byte(p, '\n');
}

/* ---- Containers and calls ---- */

void xt_pickler_put_mark(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_MARK); }
void xt_pickler_put_list(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_EMPTY_LIST); }
void xt_pickler_put_dict(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_EMPTY_DICT); }
void xt_pickler_put_appends(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_APPENDS); }
void xt_pickler_put_set_items(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_SETITEMS); }
void xt_pickler_put_tuple(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_TUPLE); }
void xt_pickler_put_reduce(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_REDUCE); }
void xt_pickler_put_new(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_NEWOBJ); }
void xt_pickler_put_build(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_BUILD); }
void xt_pickler_put_persistent(xt_pickler *p) { xt_pickler_put_op(p, XT_OP_BINPERSID); }

void xt_pickler_put_tuple_of(xt_pickler *p, int count) {
  static const xt_opcode opcodes[] = {XT_OP_EMPTY_TUPLE, XT_OP_TUPLE1, XT_OP_TUPLE2, XT_OP_TUPLE3};
  xt_pickler_put_op(p, opcodes[count]);
}

/* ---- Values of torch, numpy and Python ---- */

void xt_pickler_put_dtype(xt_pickler *p, xt_dtype dtype) {
  const char *name = xt_dtype_get(dtype)->name;
  xt_pickler_put_name(p, "torch", 5, name, strlen(name));
}

void xt_pickler_put_device(xt_pickler *p, const char *type, size_t size, const int64_t *index) {
  xt_pickler_put_global(p, "torch\ndevice\n");
  xt_pickler_put_text(p, type, size);
  if (index) xt_pickler_put_int(p, *index);
  xt_pickler_put_tuple_of(p, index ? 2 : 1);
  xt_pickler_put_reduce(p);
}

void xt_pickler_put_complex(xt_pickler *p, double re, double im) {
  xt_pickler_put_global(p, "__builtin__\ncomplex\n");
  xt_pickler_put_float(p, re);
  xt_pickler_put_float(p, im);
  xt_pickler_put_tuple_of(p, 2);
  xt_pickler_put_reduce(p);
}

/* Writes scalar(dtype(code, False, True), bytes). The state of the dtype is (3, '<', None, None, None, -1, -1, 0). */
void xt_pickler_put_numpy_scalar(xt_pickler *p, xt_dtype dtype, const uint8_t *bytes) {
  const char *code = xt_dtype_get(dtype)->numpy;
  size_t size = xt_dtype_get(dtype)->size;
  xt_pickler_put_global(p, "numpy.core.multiarray\nscalar\n");
  xt_pickler_put_global(p, "numpy\ndtype\n");
  xt_pickler_put_text(p, code, strlen(code));
  xt_pickler_put_bool(p, false);
  xt_pickler_put_bool(p, true);
  xt_pickler_put_tuple_of(p, 3);
  xt_pickler_put_reduce(p);
  xt_pickler_put_mark(p);
  xt_pickler_put_int(p, 3);
  xt_pickler_put_text(p, size == 1 ? "|" : "<", 1);
  for (int i = 0; i < 3; i++) xt_pickler_put_none(p);
  xt_pickler_put_int(p, -1);
  xt_pickler_put_int(p, -1);
  xt_pickler_put_int(p, 0);
  xt_pickler_put_tuple(p);
  xt_pickler_put_build(p);
  xt_pickler_put_bytes(p, bytes, size);
  xt_pickler_put_tuple_of(p, 2);
  xt_pickler_put_reduce(p);
}

const char *xt_pickler_storage_class(xt_dtype dtype) {
  static const char *const globals[] = {
#define XT_DTYPE(name, size, torch, kind, nx, bits, alias, packed, storage, ...) "torch\n" storage "Storage\n",
#include "core/base/dtypes.def"
#undef XT_DTYPE
  };
  return *xt_dtype_get(dtype)->storage ? globals[dtype] : NULL;
}
