#include "core/base/utf8.h"

#include <string.h>

xt_utf8 xt_utf8_check(const uint8_t *text, size_t size) {
  xt_utf8 answer = XT_UTF8_VALID;
  size_t i = 0;
  while (i < size) {
    uint64_t word;
    if (size - i >= 8 && (memcpy(&word, text + i, 8), !(word & 0x8080808080808080ull))) {
      i += 8;
      continue;
    }
    uint8_t lead = text[i++];
    if (lead < 0x80) continue;
    int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4 || size - i < (size_t)more) return XT_UTF8_INVALID;
    uint32_t code = lead & (0x3F >> more);
    for (int k = 0; k < more; k++, i++) {
      if ((text[i] & 0xC0) != 0x80) return XT_UTF8_INVALID;
      code = code << 6 | (text[i] & 0x3F);
    }
    if ((more == 2 && code < 0x800) || (more == 3 && (code < 0x10000 || code > 0x10FFFF))) return XT_UTF8_INVALID;
    if (code >= 0xD800 && code < 0xE000) answer = XT_UTF8_SURROGATES;
  }
  return answer;
}
