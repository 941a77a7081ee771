#include "buffer.h"

#include <stdlib.h>
#include <string.h>

uint8_t *xt_buffer_room(xt_buffer *b, size_t n) {
  if (b->failed) return NULL;
  if (n > b->room - b->size) {
    size_t room = b->room ? b->room : 256;
    while (room - b->size < n && room < SIZE_MAX / 2) room *= 2;
    uint8_t *grown = room - b->size < n ? NULL : realloc(b->data, room);
    if (!grown) {
      b->failed = true;
      return NULL;
    }
    b->data = grown;
    b->room = room;
  }
  return b->data + b->size;
}

void xt_buffer_put(xt_buffer *b, const void *data, size_t size) {
  uint8_t *to = size ? xt_buffer_room(b, size) : NULL;
  if (!to) return;
  memcpy(to, data, size);
  b->size += size;
}

void xt_buffer_text(xt_buffer *b, const char *text) { xt_buffer_put(b, text, strlen(text)); }

void xt_buffer_fill(xt_buffer *b, uint8_t byte, size_t count) {
  uint8_t *to = xt_buffer_room(b, count);
  if (!to) return;
  memset(to, byte, count);
  b->size += count;
}

void xt_buffer_le(xt_buffer *b, uint64_t value, size_t bytes) {
  uint8_t *to = xt_buffer_room(b, bytes);
  if (!to) return;
  for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> (8 * i));
  b->size += bytes;
}

void xt_buffer_free(xt_buffer *b) {
  free(b->data);
  *b = (xt_buffer){0};
}
