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

static uint8_t *copy(uint8_t *to, const char *text, size_t size) { return (uint8_t *)memcpy(to, text, size) + size; }

static uint8_t *copy_number(uint8_t *to, uint64_t number) { return to + xt_decimal((char *)to, number); }

/* Everything after the name is written at once: its size is bounded. */
static void put_tensor(xt_buffer *out, const xt_sort_name *name, const xt_save_view *t, uint64_t from, uint64_t to) {
  static const char dtype[] = ":{\"dtype\":\"", shape[] = "\",\"shape\":[", offsets[] = "],\"data_offsets\":[";
  enum { TEXT = sizeof dtype + sizeof shape + sizeof offsets + 8, NUMBER = XT_DECIMAL_DIGITS + 1 };
  const xt_dtype_info *info = xt_dtype_get(t->dtype);
  size_t dtype_size = strlen(info->safetensors);
  xt_json_put_text(out, name->text, name->size);
  uint8_t *start = xt_buffer_reserve(out, TEXT + dtype_size + ((size_t)t->ndim + 2) * NUMBER), *at = start;
  if (!start) return;
  at = copy(at, dtype, sizeof dtype - 1);
  at = copy(at, info->safetensors, dtype_size);
  at = copy(at, shape, sizeof shape - 1);
  for (int d = 0; d < t->ndim; d++) {
    /* torch counts bytes of packed elements, safetensors counts elements */
    int64_t size = info->packed && d == t->ndim - 1 ? 8 * t->sizes[d] / info->packed : t->sizes[d];
    if (d) *at++ = ',';
    at = copy_number(at, (uint64_t)size);
  }
  at = copy(at, offsets, sizeof offsets - 1);
  at = copy_number(at, from);
  *at++ = ',';
  at = copy_number(at, to);
  at = copy(at, "]}", 2);
  out->size += (size_t)(at - start);
}

/* Prefetches what is put of a tensor that comes soon: the tensors are sorted, so they are scattered in memory. */
static void prefetch(const xt_save_plan *p, size_t i) {
  enum { SOON = 8, LATER = 16, LINE = 64 };
  if (i + LATER >= p->count) return;
  size_t soon = p->payloads[i + SOON].view, later = p->payloads[i + LATER].view;
  __builtin_prefetch(&p->names[later]);
  __builtin_prefetch(&p->views[later]);
  __builtin_prefetch((const char *)&p->views[later] + LINE);
  __builtin_prefetch(p->names[soon].text);
  __builtin_prefetch(p->views[soon].sizes);
}

/* Gives the output memory of the arena, which has huge pages, for a header of the usual length. */
static void reserve(xt_saver *s) {
  enum { USUAL_TENSOR = 88, MIN_SIZE = 1 << 20 };
  const xt_save_plan *p = s->plan;
  size_t size = p->metadata.size + p->count * USUAL_TENSOR;
  for (size_t i = 0; i < p->count; i++) size += p->names[i].size;
  uint8_t *memory = size < MIN_SIZE || s->out.data ? NULL : xt_arena_alloc_uncleared(&s->arena, size);
  if (memory) s->out = (xt_buffer){.data = memory, .room = size, .borrowed = true};
}

/* Other writers align the data to 8 bytes. Aligned to 64, it is copied faster from and to memory that is. */
static void begin(xt_saver *s) {
  enum { ALIGNMENT = 64 };
  xt_buffer *out = &s->out;
  uint64_t at = 0;
  reserve(s);
  xt_buffer_le(out, 0, 8);
  xt_buffer_byte(out, '{');
  bool metadata = s->plan->metadata.size;
  if (metadata) put_metadata(out, &s->plan->metadata);
  for (size_t i = 0; i < s->plan->count; i++) {
    if (i || metadata) xt_buffer_byte(out, ',');
    const xt_payload *payload = &s->plan->payloads[i];
    prefetch(s->plan, i);
    put_tensor(out, &s->plan->names[payload->view], &s->plan->views[payload->view], at, at + payload->bytes);
    at += payload->bytes;
  }
  xt_buffer_byte(out, '}');
  xt_buffer_fill(out, ' ', (ALIGNMENT - out->size % ALIGNMENT) % ALIGNMENT);
  if (out->failed) return;
  uint64_t size = out->size - 8;
  for (int i = 0; i < 8; i++) out->data[i] = (uint8_t)(size >> (8 * i));
}

static bool accepts(const char *name, size_t size) {
  static const char metadata[] = "__metadata__";
  return size != sizeof metadata - 1 || memcmp(name, metadata, size);
}

const xt_format_writer xt_safetensors_write = {
    .name = "safetensors", .refuses = refuses, .accepts = accepts, .aligned = true, .begin = begin};
