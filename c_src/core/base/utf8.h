#ifndef XT_BASE_UTF8_H
#define XT_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

typedef enum { XT_UTF8_VALID, XT_UTF8_SURROGATES, XT_UTF8_INVALID } xt_utf8;

/* Checks whether text is valid UTF-8. XT_UTF8_SURROGATES: it would be valid but for encoded lone surrogates, which
 * Python's pickle writes as if they were characters. */
xt_utf8 xt_utf8_check(const uint8_t *text, size_t size);

/* Writes a character of up to 21 bits, a surrogate like any other. Returns the number of bytes, 1 to 4. */
static inline size_t xt_utf8_encode(char *to, uint32_t c) {
  if (c < 0x80) {
    *to = (char)c;
    return 1;
  }
  size_t more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  *to = (char)(uint8_t)(0xFF00u >> (more + 1) | c >> (6 * more));
  for (size_t i = more; i > 0; i--) *++to = (char)(0x80 | (c >> (6 * (i - 1)) & 0x3F));
  return more + 1;
}

#endif
