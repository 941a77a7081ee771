/* Writes a safetensors file. */
#include "core/formats/safetensors.h"

#include <string.h>

#include "core/formats/json.h"

static void put_metadata(xt_buffer *out, const xt_buffer *pairs) {
  const char *at = (const char *)pairs->data, *end = at + pairs->size;
  bool first = true;
  xt_buffer_text(out, "\"__metadata__\":{");
  while (at < end) {
    for (int i = 0; i < 2; i++) {
      size_t size;
      memcpy(&size, at, sizeof size);
      if (!i && !first) xt_buffer_byte(out, ',');
      xt_json_put_text(out, at + sizeof size, size);
      if (!i) xt_buffer_byte(out, ':');
      at += sizeof size + size;
    }
    first = false;
  }
  xt_buffer_byte(out, '}');
}

static const char *refuses(const xt_save_tensor *t) {
  const xt_dtype_info *info = xt_dtype_get(t->dtype);
  if (t->kind != XT_SAVE_STRIDED) return "sparse, quantized or meta tensors";
  if (!*info->safetensors) return info->name;
  if (!info->packed) return NULL;
  const xt_save_view *view = &t->views[0];
  bool whole = view->ndim && view->sizes[view->ndim - 1] * 8 % info->packed == 0;
  return whole ? NULL : "a last dimension with a part of an element";
}

static void put_tensor(xt_buffer *out, const xt_save_name *name, const xt_save_view *t, uint64_t from, uint64_t to) {
  const xt_dtype_info *info = xt_dtype_get(t->dtype);
  xt_json_put_text(out, name->text, name->size);
  xt_buffer_text(out, ":{\"dtype\":\"");
  xt_buffer_text(out, info->safetensors);
  xt_buffer_text(out, "\",\"shape\":[");
  for (int d = 0; d < t->ndim; d++) {
    /* torch counts bytes of packed elements, safetensors counts elements */
    int64_t size = info->packed && d == t->ndim - 1 ? 8 * t->sizes[d] / info->packed : t->sizes[d];
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
  bool metadata = s->plan->metadata.size;
  if (metadata) put_metadata(out, &s->plan->metadata);
  for (size_t i = 0; i < s->plan->count; i++) {
    if (i || metadata) xt_buffer_byte(out, ',');
    put_tensor(out, &s->plan->names[i], &s->plan->views[i], at, at + s->plan->payloads[i].bytes);
    at += s->plan->payloads[i].bytes;
  }
  xt_buffer_byte(out, '}');
  xt_buffer_fill(out, ' ', (8 - out->size % 8) % 8);
  if (out->failed) return;
  uint64_t size = out->size - 8;
  for (int i = 0; i < 8; i++) out->data[i] = (uint8_t)(size >> (8 * i));
}

const xt_format_writer xt_safetensors_write = {.name = "safetensors", .refuses = refuses, .begin = begin};
