#include "core/pickle/escape.h"

#include "core/base/utf8.h"

/* Returns the number that the given count of hexadecimal digits stands for, or -1 if they are invalid. */
static int64_t parse_hex(const char *text, size_t left, int digits) {
  int64_t value = 0;
  if (left < (size_t)digits) return -1;
  for (int i = 0; i < digits; i++) {
    char c = text[i];
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

static bool is_octal(char c) { return c >= '0' && c <= '7'; }

/* Reads up to three octal digits and sets *digits to their number. */
static char parse_octal(const char *text, size_t left, size_t *digits) {
  int value = 0;
  for (*digits = 0; *digits < 3 && *digits < left && is_octal(text[*digits]); ++*digits)
    value = value * 8 + (text[*digits] - '0');
  return (char)value;
}

/* Returns the character of an escape sequence of one letter, or 0. */
static char single(char letter) {
  switch (letter) {
  case 'a': return '\a';
  case 'b': return '\b';
  case 'f': return '\f';
  case 'n': return '\n';
  case 'r': return '\r';
  case 't': return '\t';
  case 'v': return '\v';
  case '\\':
  case '\'':
  case '"': return letter;
  default: return 0;
  }
}

bool xt_escape_string(const char *line, size_t size, char *to, size_t *length) {
  char *start = to;
  for (size_t i = 0, digits; i < size; i++) {
    char next = i + 1 < size ? line[i + 1] : 0;
    if (line[i] != '\\' || i + 1 == size) {
      *to++ = line[i];
    } else if (next == 'x') {
      int64_t code = parse_hex(line + i + 2, size - i - 2, 2);
      if (code < 0) return false;
      *to++ = (char)code;
      i += 3;
    } else if (is_octal(next)) {
      *to++ = parse_octal(line + i + 1, size - i - 1, &digits);
      i += digits;
    } else if (single(next)) {
      *to++ = single(next);
      i++;
    } else {
      *to++ = '\\'; /* of an unknown sequence, which stays as it is */
    }
  }
  *length = (size_t)(to - start);
  return true;
}

bool xt_escape_unicode(const char *line, size_t size, char *to, size_t *length) {
  char *start = to;
  size_t backslashes = 0; /* directly before the character */
  for (size_t i = 0; i < size; i++) {
    int64_t code = (unsigned char)line[i];
    if (backslashes % 2 && (code == 'u' || code == 'U')) {
      int digits = code == 'u' ? 4 : 8;
      code = parse_hex(line + i + 1, size - i - 1, digits);
      if (code < 0 || code > 0x10FFFF) return false;
      i += (size_t)digits;
      to--; /* the backslash */
      backslashes = 0;
    } else {
      backslashes = code == '\\' ? backslashes + 1 : 0;
    }
    to += xt_utf8_encode(to, (uint32_t)code);
  }
  *length = (size_t)(to - start);
  return true;
}
