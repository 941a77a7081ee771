/* Bytes that grow. After the first allocation that fails `failed` tells, and what is in there is of no use. */
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
  bool failed; /* a zeroed buffer is empty and usable */
} xt_buffer;

/* The slow part of xt_buffer_room. */
uint8_t *xt_buffer_grow(xt_buffer *buffer, size_t n);

/* Room for n more bytes, to be written there and then counted with `size +=`; NULL when there is no memory. */
static inline uint8_t *xt_buffer_room(xt_buffer *buffer, size_t n) {
  return n <= buffer->room - buffer->size ? buffer->data + buffer->size : xt_buffer_grow(buffer, n);
}

static inline void xt_buffer_byte(xt_buffer *buffer, uint8_t byte) {
  uint8_t *to = xt_buffer_room(buffer, 1);
  if (to) *to = byte, buffer->size++;
}

static inline void xt_buffer_put(xt_buffer *buffer, const void *data, size_t size) {
  uint8_t *to = size ? xt_buffer_room(buffer, size) : NULL;
  if (to) memcpy(to, data, size), buffer->size += size;
}

static inline void xt_buffer_text(xt_buffer *buffer, const char *text) { xt_buffer_put(buffer, text, strlen(text)); }

static inline void xt_buffer_fill(xt_buffer *buffer, uint8_t byte, size_t count) {
  uint8_t *to = count ? xt_buffer_room(buffer, count) : NULL;
  if (to) memset(to, byte, count), buffer->size += count;
}

/* little-endian */
static inline void xt_buffer_le(xt_buffer *buffer, uint64_t value, size_t bytes) {
  uint8_t *to = xt_buffer_room(buffer, bytes);
  for (size_t i = 0; to && i < bytes; i++) to[i] = (uint8_t)(value >> (8 * i));
  if (to) buffer->size += bytes;
}

static inline void xt_buffer_decimal(xt_buffer *buffer, uint64_t number) {
  uint8_t *to = xt_buffer_room(buffer, XT_DECIMAL_MOST);
  if (to) buffer->size += xt_decimal((char *)to, number);
}

void xt_buffer_free(xt_buffer *buffer);

#endif
