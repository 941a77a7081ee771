/* Reading bytes with a bound: every get checks, and after the first that fails all further ones give zeros. */
#ifndef XT_BASE_CURSOR_H
#define XT_BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
  const uint8_t *data;
  size_t size, at;
  bool short_; /* a get went past the end */
} xt_cursor;

static inline size_t xt_cursor_left(const xt_cursor *in) { return in->size - in->at; }

/* The next n bytes, or NULL. */
static inline const uint8_t *xt_cursor_take(xt_cursor *in, size_t n) {
  if (in->short_ || xt_cursor_left(in) < n) {
    in->short_ = true;
    return NULL;
  }
  const uint8_t *bytes = in->data + in->at;
  in->at += n;
  return bytes;
}

/* Little-endian numbers of n bytes. */
static inline uint64_t xt_le(const uint8_t *bytes, size_t n) {
  uint64_t value = 0;
  for (size_t i = 0; i < n; i++) value |= (uint64_t)bytes[i] << (8 * i);
  return value;
}

static inline uint64_t xt_cursor_le(xt_cursor *in, size_t n) {
  const uint8_t *bytes = xt_cursor_take(in, n);
  return bytes ? xt_le(bytes, n) : 0;
}

#endif
