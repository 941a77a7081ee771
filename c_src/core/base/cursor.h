/* Bounds-checked reading of bytes. The first read past the end sets `short_`; that read and all later ones return NULL
 * or 0. */
#ifndef XT_BASE_CURSOR_H
#define XT_BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
  const uint8_t *data;
  size_t size, at;
  bool short_; /* a read went past the end */
} xt_cursor;

static inline size_t xt_cursor_left(const xt_cursor *in) { return in->size - in->at; }

/* Returns the next n bytes and moves past them, or NULL if fewer are left. */
static inline const uint8_t *xt_cursor_take(xt_cursor *in, size_t n) {
  if (in->short_ || xt_cursor_left(in) < n) {
    in->short_ = true;
    return NULL;
  }
  const uint8_t *bytes = in->data + in->at;
  in->at += n;
  return bytes;
}

/* Returns the little-endian number of n bytes (at most 8). */
static inline uint64_t xt_le(const uint8_t *bytes, size_t n) {
  uint64_t value = 0;
  for (size_t i = 0; i < n; i++) value |= (uint64_t)bytes[i] << (8 * i);
  return value;
}

/* Reads the next n bytes as a little-endian number. */
static inline uint64_t xt_cursor_le(xt_cursor *in, size_t n) {
  const uint8_t *bytes = xt_cursor_take(in, n);
  return bytes ? xt_le(bytes, n) : 0;
}

#endif
