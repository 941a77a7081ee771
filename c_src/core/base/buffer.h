/* A growable byte buffer. The first allocation that fails sets `failed`; the content is incomplete from then on and
 * must not be used. Callers therefore check `failed` once, at the end. A zeroed buffer is empty and ready for use. */
#ifndef XT_BASE_BUFFER_H
#define XT_BASE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/decimal.h"

typedef struct {
  uint8_t *data;
  size_t size, room;
  bool failed;
  bool borrowed; /* the memory belongs to somebody else; a buffer that has to grow replaces it */
} xt_buffer;

/* The slow path of xt_buffer_reserve. */
uint8_t *xt_buffer_grow(xt_buffer *buffer, size_t n);

/* Returns space for n more bytes, or NULL if there is not enough memory. The caller writes up to n bytes there and adds
 * the number of bytes written to `size`. */
static inline uint8_t *xt_buffer_reserve(xt_buffer *buffer, size_t n) {
  return n <= buffer->room - buffer->size ? buffer->data + buffer->size : xt_buffer_grow(buffer, n);
}

static inline void xt_buffer_byte(xt_buffer *buffer, uint8_t byte) {
  uint8_t *to = xt_buffer_reserve(buffer, 1);
  if (to) *to = byte, buffer->size++;
}

static inline void xt_buffer_put(xt_buffer *buffer, const void *data, size_t size) {
  uint8_t *to = size ? xt_buffer_reserve(buffer, size) : NULL;
  if (to) memcpy(to, data, size), buffer->size += size;
}

static inline void xt_buffer_text(xt_buffer *buffer, const char *text) { xt_buffer_put(buffer, text, strlen(text)); }

static inline void xt_buffer_fill(xt_buffer *buffer, uint8_t byte, size_t count) {
  uint8_t *to = count ? xt_buffer_reserve(buffer, count) : NULL;
  if (to) memset(to, byte, count), buffer->size += count;
}

/* Appends the low `bytes` bytes of value in little-endian order. */
static inline void xt_buffer_le(xt_buffer *buffer, uint64_t value, size_t bytes) {
  uint8_t *to = xt_buffer_reserve(buffer, bytes);
  for (size_t i = 0; to && i < bytes; i++) to[i] = (uint8_t)(value >> (8 * i));
  if (to) buffer->size += bytes;
}

static inline void xt_buffer_decimal(xt_buffer *buffer, uint64_t number) {
  uint8_t *to = xt_buffer_reserve(buffer, XT_DECIMAL_DIGITS);
  if (to) buffer->size += xt_decimal((char *)to, number);
}

void xt_buffer_free(xt_buffer *buffer);

#endif
