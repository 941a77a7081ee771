#include "core/pickle/escape.h"

#include "core/base/utf8.h"

/* Returns the number that the given count of hexadecimal digits stands for, or -1 if they are invalid. */
static int parse_hex(const char *text, size_t left, int digits) {
  int value = 0;
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

bool xt_escape_string(const char *line, size_t size, char *to, size_t *length) {
  char *start = to;
  for (size_t i = 0; i < size; i++) {
    if (line[i] != '\\' || i + 1 == size) {
      *to++ = line[i];
      continue;
    }
    char next = line[++i];
    if (next == 'x') {
      int code = parse_hex(line + i + 1, size - i - 1, 2);
      if (code < 0) return false;
      *to++ = (char)code;
      i += 2;
    } else {
      *to++ = next == 'n' ? '\n' : next == 't' ? '\t' : next == 'r' ? '\r' : next;
    }
  }
  *length = (size_t)(to - start);
  return true;
}

bool xt_escape_unicode(const char *line, size_t size, char *to, size_t *length) {
  char *start = to;
  for (size_t i = 0; i < size; i++) {
    int code = (unsigned char)line[i];
    if (code == '\\' && i + 1 < size && line[i + 1] == 'u') {
      code = parse_hex(line + i + 2, size - i - 2, 4);
      if (code < 0) return false;
      i += 5;
    }
    to += xt_utf8_encode(to, (uint32_t)code);
  }
  *length = (size_t)(to - start);
  return true;
}
