#include "core/base/buffer.h"

#include <stdlib.h>

uint8_t *xt_buffer_grow(xt_buffer *b, size_t n) {
  if (b->failed) return NULL;
  size_t room = b->room ? b->room : 256;
  while (room - b->size < n && room < SIZE_MAX / 2) room *= 2;
  uint8_t *grown = room - b->size < n ? NULL : realloc(b->data, room);
  if (!grown) {
    b->failed = true;
    b->room = b->size; /* every later call takes the slow path and fails */
    return NULL;
  }
  b->data = grown;
  b->room = room;
  return b->data + b->size;
}

void xt_buffer_free(xt_buffer *b) {
  free(b->data);
  *b = (xt_buffer){0};
}
