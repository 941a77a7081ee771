#include "core/base/buffer.h"

#include <stdlib.h>

#include "core/base/array.h"

static bool reserve(xt_buffer *b, size_t wanted) {
  if (!b->borrowed) return xt_array_reserve(&b->data, &b->room, wanted, 1);
  uint8_t *own = NULL;
  size_t room = 0;
  if (!xt_array_reserve(&own, &room, xt_array_next_room(b->room, wanted, 1), 1)) return false;
  if (b->size) memcpy(own, b->data, b->size);
  *b = (xt_buffer){.data = own, .size = b->size, .room = room};
  return true;
}

uint8_t *xt_buffer_grow(xt_buffer *b, size_t n) {
  size_t wanted;
  if (b->failed || __builtin_add_overflow(b->size, n, &wanted) || !reserve(b, wanted)) {
    b->failed = true;
    b->room = b->size; /* every later call takes the slow path and fails */
    return NULL;
  }
  return b->data + b->size;
}

void xt_buffer_free(xt_buffer *b) {
  if (!b->borrowed) free(b->data);
  *b = (xt_buffer){0};
}
