#include "core/pickle/escape.h"

#include <string.h>

#include "check.h"

typedef struct {
  const char *line;
  const char *bytes; /* NULL: refused */
  size_t size;
} escape_case;

static void check_cases(bool (*unescape)(const char *, size_t, char *, size_t *), const escape_case *cases,
                        size_t count, size_t room_per_byte) {
  for (size_t i = 0; i < count; i++) {
    size_t size = strlen(cases[i].line), length = 0;
    /* Copies of exactly the documented sizes, so that the sanitizer reports any access past their ends. */
    char *line = malloc(size ? size : 1), *to = malloc(size ? room_per_byte * size : 1);
    memcpy(line, cases[i].line, size);
    bool valid = unescape(line, size, to, &length);
    CHECK(valid == (cases[i].bytes != NULL));
    if (valid) CHECK(length == cases[i].size && !memcmp(to, cases[i].bytes, length));
    free(line);
    free(to);
  }
}

static void unescapes_byte_strings(void) {
  static const escape_case cases[] = {
      {"", "", 0},
      {"plain", "plain", 5},
      {"a\\nb\\tc\\rd", "a\nb\tc\rd", 7},
      {"\\\\ \\' \\\"", "\\ ' \"", 5},
      {"\\x00\\xfF\\x41z",
       "\0\xff"
       "Az",
       4},
      {"\\q\\", "\\q\\", 3},
      {"\\a\\b\\f\\v", "\a\b\f\v", 4},
      {"\\0\\101\\3777\\8",
       "\0A\xff"
       "7\\8",
       6},
      {"end\\", "end\\", 4},
      {"\xe9", "\xe9", 1},
      {"\\x", NULL, 0},
      {"\\x4", NULL, 0},
      {"\\xg0", NULL, 0},
      {"\\x0-", NULL, 0},
  };
  check_cases(xt_escape_string, cases, COUNT_OF(cases), 1);
}

static void unescapes_unicode(void) {
  static const escape_case cases[] = {
      {"", "", 0},
      {"plain", "plain", 5},
      {"\\u0041\\u00e9\\u20AC", "A\xc3\xa9\xe2\x82\xac", 6},
      {"\\u0000", "\0", 1},
      {"\xe9\xff", "\xc3\xa9\xc3\xbf", 4}, /* Latin-1 */
      {"\\ud83d", "\xed\xa0\xbd", 3},      /* a lone surrogate stays one */
      {"\\n \\x41 \\", "\\n \\x41 \\", 9}, /* other escapes are not special */
      {"\\U0001f600", "\xf0\x9f\x98\x80", 4},
      {"\\\\u0041 \\\\\\u0041", "\\\\u0041 \\\\A", 11},
      {"\\U00110000", NULL, 0},
      {"\\U0001f60", NULL, 0},
      {"\\u", NULL, 0},
      {"\\u004", NULL, 0},
      {"\\u00g1", NULL, 0},
  };
  check_cases(xt_escape_unicode, cases, COUNT_OF(cases), 2);
}

int main(void) { return RUN_TESTS("escape", unescapes_byte_strings, unescapes_unicode); }
