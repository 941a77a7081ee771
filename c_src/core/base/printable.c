#include "core/base/printable.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/base/utf8.h"

/* Length of the UTF-8 character that begins with this byte. */
static size_t character_size(uint8_t lead) { return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

static size_t escape(char *to, uint8_t byte) {
  static const char digits[] = "0123456789abcdef";
  const char escaped[] = {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
  memcpy(to, escaped, sizeof escaped);
  return sizeof escaped;
}

xt_printable xt_printable_text(const char *data, size_t size) {
  xt_printable out;
  const uint8_t *bytes = (const uint8_t *)data;
  size_t length = 0, i = 0;
  while (i < size) {
    size_t step = character_size(bytes[i]);
    bool valid = step <= size - i && xt_utf8_check(bytes + i, step) == XT_UTF8_VALID;
    bool control = bytes[i] < 0x20 || bytes[i] == 0x7F || (bytes[i] == 0xC2 && valid && bytes[i + 1] < 0xA0);
    bool plain = valid && !control;
    if (length + (plain ? step : 4) > XT_PRINTABLE_MAX) break;
    if (!plain) {
      length += escape(out.text + length, bytes[i++]);
      continue;
    }
    memcpy(out.text + length, bytes + i, step);
    length += step;
    i += step;
  }
  if (i < size) memcpy(out.text + length, "...", 3), length += 3;
  out.text[length] = 0;
  return out;
}
