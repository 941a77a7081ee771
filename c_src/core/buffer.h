/* Bytes that grow. After the first allocation that fails everything further is dropped, and `failed` tells. */
#ifndef XT_BUFFER_H
#define XT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint8_t *data;
  size_t size, room;
  bool failed; /* a zeroed buffer is empty and usable */
} xt_buffer;

/* Room for n more bytes, to be written there and then counted with `size +=`; NULL when there is no memory. */
uint8_t *xt_buffer_room(xt_buffer *buffer, size_t n);

void xt_buffer_put(xt_buffer *buffer, const void *data, size_t size);
void xt_buffer_text(xt_buffer *buffer, const char *text);
static inline void xt_buffer_byte(xt_buffer *buffer, uint8_t byte) {
  uint8_t *to =
      buffer->size < buffer->room && !buffer->failed ? buffer->data + buffer->size : xt_buffer_room(buffer, 1);
  if (to) *to = byte, buffer->size++;
}
void xt_buffer_fill(xt_buffer *buffer, uint8_t byte, size_t count);
void xt_buffer_le(xt_buffer *buffer, uint64_t value, size_t bytes); /* little-endian */
void xt_buffer_free(xt_buffer *buffer);

#endif
