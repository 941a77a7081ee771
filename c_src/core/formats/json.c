#include "core/formats/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/utf8.h"

bool xt_json_fail(xt_json *j, const char *why) {
  if (!j->wrong) j->wrong = why;
  return false;
}

bool xt_json_no_memory(xt_json *j) {
  j->no_memory = true;
  return xt_json_fail(j, "out of memory");
}

void xt_json_begin(xt_json *j, const uint8_t *data, size_t size, xt_arena *arena) {
  *j = (xt_json){.data = data, .size = size, .arena = arena};
}

char xt_json_peek(xt_json *j) {
  if (j->at < j->size && j->data[j->at] > ' ' && !j->wrong) return (char)j->data[j->at];
  while (j->at < j->size &&
         (j->data[j->at] == ' ' || j->data[j->at] == '\n' || j->data[j->at] == '\t' || j->data[j->at] == '\r'))
    j->at++;
  return j->at < j->size && !j->wrong ? (char)j->data[j->at] : 0;
}

static inline bool take(xt_json *j, char c) {
  if (j->at < j->size && j->data[j->at] == (uint8_t)c && !j->wrong) return j->at++, true;
  if (xt_json_peek(j) != c) return false;
  j->at++;
  return true;
}

/* ---- Objects and arrays ---- */

static bool enter(xt_json *j, char opens, char closes) {
  if (!take(j, opens)) return xt_json_fail(j, opens == '{' ? "expected an object" : "expected an array");
  if (j->depth == XT_JSON_DEPTH) return xt_json_fail(j, "nested more than 64 levels deep");
  j->depth++;
  j->first[j->depth] = true;
  j->closes[j->depth] = closes;
  return true;
}

/* Returns true if another member follows. Otherwise leaves the object or array. */
static bool next_member(xt_json *j) {
  if (j->wrong) return false;
  if (take(j, j->closes[j->depth])) {
    j->depth--;
    return false;
  }
  if (!j->first[j->depth] && !take(j, ',')) return xt_json_fail(j, "expected a comma or a closing bracket");
  if (!j->first[j->depth] && xt_json_peek(j) == j->closes[j->depth]) return xt_json_fail(j, "trailing comma");
  j->first[j->depth] = false;
  return true;
}

bool xt_json_object(xt_json *j) { return enter(j, '{', '}'); }
bool xt_json_array(xt_json *j) { return enter(j, '[', ']'); }
bool xt_json_item(xt_json *j) { return next_member(j); }

bool xt_json_key(xt_json *j, xt_json_string *key) {
  if (!next_member(j) || !xt_json_text(j, key)) return false;
  return take(j, ':') || xt_json_fail(j, "expected a colon after a key");
}

/* ---- Strings ---- */

static int hex4(const uint8_t *at) {
  int value = 0;
  for (int i = 0; i < 4; i++) {
    int digit = at[i] >= '0' && at[i] <= '9'   ? at[i] - '0'
                : at[i] >= 'a' && at[i] <= 'f' ? at[i] - 'a' + 10
                : at[i] >= 'A' && at[i] <= 'F' ? at[i] - 'A' + 10
                                               : -1;
    if (digit < 0) return -1;
    value = value << 4 | digit;
  }
  return value;
}

/* Decodes \uXXXX, or a surrogate pair of two; `at` is after the first u. Returns the number of bytes read, 0 if the
 * escape is invalid. */
static size_t decode_unicode(const uint8_t *at, size_t left, uint32_t *c) {
  int high = left >= 4 ? hex4(at) : -1;
  *c = (uint32_t)high;
  if (high < 0 || (high >= 0xDC00 && high < 0xE000)) return 0;
  if (high < 0xD800 || high >= 0xE000) return 4;
  int low = left >= 10 && at[4] == '\\' && at[5] == 'u' ? hex4(at + 6) : -1;
  if (low < 0xDC00 || low >= 0xE000) return 0;
  *c = 0x10000 + (((uint32_t)high - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
  return 10;
}

static bool unescape(xt_json *j, const uint8_t *from, size_t size, xt_json_string *out) {
  static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
  char *to = xt_arena_alloc(j->arena, size + 1, 1);
  size_t length = 0;
  if (!to) return xt_json_no_memory(j);
  for (size_t i = 0; i < size; i++) {
    if (from[i] != '\\') {
      to[length++] = (char)from[i];
      continue;
    }
    uint8_t letter = from[++i]; /* exists: the text is followed by the closing quote */
    const char *found = letter ? strchr(letters, letter) : NULL;
    if (found) {
      to[length++] = values[found - letters];
      continue;
    }
    uint32_t c;
    size_t used = letter == 'u' ? decode_unicode(from + i + 1, size - i - 1, &c) : 0;
    if (!used) return xt_json_fail(j, "invalid escape sequence");
    length += xt_utf8_encode(to + length, c);
    i += used;
  }
  *out = (xt_json_string){to, length};
  return true;
}

/* Checks that the eight bytes at `at` are printable ASCII other than quote and backslash. Each test leaves its result
 * in the top bit of each byte. */
static bool eight_plain(const uint8_t *at) {
  const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
  uint64_t word;
  memcpy(&word, at, 8);
  uint64_t quote = word ^ (ones * '"'), slash = word ^ (ones * '\\');
  uint64_t special = word | (word - ones * 0x20) | (quote - ones) | (slash - ones);
  return !(special & tops);
}

bool xt_json_text(xt_json *j, xt_json_string *text) {
  if (!take(j, '"')) return xt_json_fail(j, "expected a string");
  size_t start = j->at;
  bool escaped = false, ascii = true;
  for (;; j->at++) {
    while (j->size - j->at >= 8 && eight_plain(j->data + j->at)) j->at += 8;
    if (j->at >= j->size) return xt_json_fail(j, "unexpected end of the text in a string");
    uint8_t c = j->data[j->at];
    if (c == '"') break;
    if (c < 0x20) return xt_json_fail(j, "control character in a string");
    if (c == '\\') {
      escaped = true;
      if (++j->at >= j->size) return xt_json_fail(j, "unexpected end of the text in a string");
    }
    if (c >= 0x80) ascii = false;
  }
  const uint8_t *from = j->data + start;
  size_t size = j->at++ - start;
  if (!ascii && xt_utf8_check(from, size) != XT_UTF8_VALID) return xt_json_fail(j, "string is not valid UTF-8");
  if (escaped) return unescape(j, from, size, text);
  *text = (xt_json_string){(const char *)from, size};
  return true;
}

/* ---- Numbers ---- */

static bool is_digit(const xt_json *j) { return j->at < j->size && j->data[j->at] >= '0' && j->data[j->at] <= '9'; }

enum { SAFE_DIGITS = 18 }; /* this many digits never overflow */

bool xt_json_integer(xt_json *j, int64_t *value) {
  bool negative = take(j, '-');
  size_t start = j->at;
  *value = 0;
  if (j->wrong) return false;
  for (; is_digit(j); j->at++) {
    int digit = j->data[j->at] - '0';
    if (j->at - start < SAFE_DIGITS) {
      *value = *value * 10 + (negative ? -digit : digit);
      continue;
    }
    if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, negative ? -digit : digit, value))
      return xt_json_fail(j, "integer does not fit in 64 bits");
  }
  if (j->at == start) return xt_json_fail(j, "expected an integer");
  if (j->data[start] == '0' && j->at - start > 1) return xt_json_fail(j, "integer begins with 0");
  char next = j->at < j->size ? (char)j->data[j->at] : 0;
  if (next == '.' || next == 'e' || next == 'E') return xt_json_fail(j, "expected an integer, found a fraction");
  return true;
}

/* -?int frac? exp? */
bool xt_json_double(xt_json *j, double *value) {
  char copy[64];
  char next = xt_json_peek(j);
  size_t start = j->at, digits;
  if (j->wrong) return false;
  if (next == '-') j->at++;
  for (digits = j->at; is_digit(j);) j->at++;
  if (digits == j->at || (j->data[digits] == '0' && j->at - digits > 1)) return xt_json_fail(j, "invalid number");
  if (j->at < j->size && j->data[j->at] == '.') {
    for (digits = ++j->at; is_digit(j);) j->at++;
    if (digits == j->at) return xt_json_fail(j, "invalid number");
  }
  if (j->at < j->size && (j->data[j->at] == 'e' || j->data[j->at] == 'E')) {
    j->at++;
    if (j->at < j->size && (j->data[j->at] == '+' || j->data[j->at] == '-')) j->at++;
    for (digits = j->at; is_digit(j);) j->at++;
    if (digits == j->at) return xt_json_fail(j, "invalid number");
  }
  if (j->at - start >= sizeof copy) return xt_json_fail(j, "number is too long");
  memcpy(copy, j->data + start, j->at - start);
  copy[j->at - start] = 0;
  *value = strtod(copy, NULL);
  return true;
}

bool xt_json_word(xt_json *j, const char *word) {
  size_t size = strlen(word);
  xt_json_peek(j);
  if (j->wrong) return false;
  if (j->size - j->at < size || memcmp(j->data + j->at, word, size)) return xt_json_fail(j, "expected a value");
  j->at += size;
  return true;
}

/* ---- The end ---- */

xt_status xt_json_end(xt_json *j, xt_error *error) {
  xt_json_peek(j); /* skips white space; its result does not distinguish a NUL byte from the end */
  if (!j->wrong && j->at < j->size) j->wrong = "more text follows the value";
  if (j->no_memory) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while reading JSON");
  if (j->wrong) return xt_error_at(error, XT_STATUS_corrupt, (int64_t)j->at, "invalid JSON: %s", j->wrong);
  return XT_STATUS_ok;
}

/* ---- Writing ---- */

/* Whether one of eight characters may need an escape: a quote, a backslash, or one below a space. The sums have a high
 * bit for a byte that is zero, or below 0x20; also above some others, which are then looked at one by one. */
static bool may_escape(const char *text) {
  const uint64_t ones = 0x0101010101010101, high = 0x8080808080808080;
  uint64_t word;
  memcpy(&word, text, sizeof word);
  uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\';
  return ((quote - ones) | (backslash - ones) | (word - ones * 0x20)) & high;
}

void xt_json_put_text(xt_buffer *out, const char *text, size_t size) {
  char escape[8];
  size_t written = 0; /* number of characters that are already in `out` */
  xt_buffer_byte(out, '"');
  for (size_t i = 0; i < size; i++) {
    uint8_t c = (uint8_t)text[i];
    while (size - i > sizeof(uint64_t) && !may_escape(text + i)) i += sizeof(uint64_t), c = (uint8_t)text[i];
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    xt_buffer_put(out, text + written, i - written);
    if (c >= 0x20) snprintf(escape, sizeof escape, "\\%c", c);
    else snprintf(escape, sizeof escape, "\\u%04x", c);
    xt_buffer_text(out, escape);
    written = i + 1;
  }
  xt_buffer_put(out, text + written, size - written);
  xt_buffer_byte(out, '"');
}
