#include "core/base/buffer.h"

#include <stdlib.h>

#include "core/base/array.h"

uint8_t *xt_buffer_grow(xt_buffer *b, size_t n) {
  size_t wanted;
  if (b->failed || __builtin_add_overflow(b->size, n, &wanted) || !xt_array_reserve(&b->data, &b->room, wanted, 1)) {
    b->failed = true;
    b->room = b->size; /* every later call takes the slow path and fails */
    return NULL;
  }
  return b->data + b->size;
}

void xt_buffer_free(xt_buffer *b) {
  free(b->data);
  *b = (xt_buffer){0};
}
