/* Writes a safetensors file. */
#include "core/formats/safetensors.h"

#include <stdio.h>
#include <string.h>

static void put_string(xt_buffer *out, const char *text, size_t size) {
  char escape[8];
  size_t flushed = 0; /* number of characters already written to `out` */
  xt_buffer_byte(out, '"');
  for (size_t i = 0; i < size; i++) {
    uint8_t c = (uint8_t)text[i];
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    xt_buffer_put(out, text + flushed, i - flushed);
    if (c >= 0x20) snprintf(escape, sizeof escape, "\\%c", c);
    else snprintf(escape, sizeof escape, "\\u%04x", c);
    xt_buffer_text(out, escape);
    flushed = i + 1;
  }
  xt_buffer_put(out, text + flushed, size - flushed);
  xt_buffer_byte(out, '"');
}

const char *xt_safetensors_dtype(xt_dtype dtype) {
  switch (dtype) {
  case XT_float64: return "F64";
  case XT_float32: return "F32";
  case XT_float16: return "F16";
  case XT_bfloat16: return "BF16";
  case XT_int64: return "I64";
  case XT_int32: return "I32";
  case XT_int16: return "I16";
  case XT_int8: return "I8";
  case XT_uint8: return "U8";
  case XT_uint16: return "U16";
  case XT_uint32: return "U32";
  case XT_uint64: return "U64";
  case XT_bool: return "BOOL";
  case XT_complex64: return "C64";
  case XT_float8_e5m2: return "F8_E5M2";
  case XT_float8_e4m3fn: return "F8_E4M3";
  case XT_float8_e8m0fnu: return "F8_E8M0";
  case XT_float8_e4m3fnuz: return "F8_E4M3FNUZ";
  case XT_float8_e5m2fnuz: return "F8_E5M2FNUZ";
  case XT_float4_e2m1fn_x2: return "F4";
  default: return NULL;
  }
}

static void put_metadata(xt_buffer *out, const xt_buffer *pairs) {
  const char *at = (const char *)pairs->data, *end = at + pairs->size;
  bool first = true;
  xt_buffer_text(out, "\"__metadata__\":{");
  while (at < end) {
    for (int i = 0; i < 2; i++) {
      size_t size;
      memcpy(&size, at, sizeof size);
      if (!i && !first) xt_buffer_byte(out, ',');
      put_string(out, at + sizeof size, size);
      if (!i) xt_buffer_byte(out, ':');
      at += sizeof size + size;
    }
    first = false;
  }
  xt_buffer_byte(out, '}');
}

static void put_tensor(xt_buffer *out, const xt_named_tensor *t, uint64_t from, uint64_t to) {
  put_string(out, t->name, t->name_size);
  xt_buffer_text(out, ":{\"dtype\":\"");
  xt_buffer_text(out, xt_safetensors_dtype(t->dtype));
  xt_buffer_text(out, "\",\"shape\":[");
  for (int d = 0; d < t->ndim; d++) {
    /* torch counts bytes of two elements, safetensors counts elements */
    int64_t size = t->dtype == XT_float4_e2m1fn_x2 && d == t->ndim - 1 ? 2 * t->sizes[d] : t->sizes[d];
    if (d) xt_buffer_byte(out, ',');
    xt_buffer_decimal(out, (uint64_t)size);
  }
  xt_buffer_text(out, "],\"data_offsets\":[");
  xt_buffer_decimal(out, from);
  xt_buffer_byte(out, ',');
  xt_buffer_decimal(out, to);
  xt_buffer_text(out, "]}");
}

static void begin(xt_saver *s) {
  xt_buffer *out = &s->out;
  uint64_t at = 0;
  xt_buffer_le(out, 0, 8);
  xt_buffer_byte(out, '{');
  bool metadata = s->metadata && s->metadata->size;
  if (metadata) put_metadata(out, s->metadata);
  for (size_t i = 0; i < s->count; i++) {
    if (i || metadata) xt_buffer_byte(out, ',');
    put_tensor(out, &s->tensors[i], at, at + s->payloads[i].bytes);
    at += s->payloads[i].bytes;
  }
  xt_buffer_byte(out, '}');
  xt_buffer_fill(out, ' ', (8 - out->size % 8) % 8);
  if (out->failed) return;
  uint64_t size = out->size - 8;
  for (int i = 0; i < 8; i++) out->data[i] = (uint8_t)(size >> (8 * i));
}

const xt_format_writer xt_safetensors_write = {"safetensors", false, begin, NULL, NULL, NULL};
