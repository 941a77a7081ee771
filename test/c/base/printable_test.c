#include "core/base/printable.h"

#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "core/base/utf8.h"

static bool shows(const char *data, size_t size, const char *expected) {
  /* A copy of exactly this size, so that the sanitizer reports a read past its end. */
  char *copy = malloc(size ? size : 1);
  memcpy(copy, data, size);
  xt_printable shown = xt_printable_text(copy, size);
  free(copy);
  return !strcmp(shown.text, expected);
}

static void text_stays_as_it_is(void) {
  CHECK(shows("", 0, "") && shows("model.0.weight", 14, "model.0.weight"));
  CHECK(shows("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", 15,
              "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"));
  CHECK(shows("\\x41", 4, "\\x41"));
}

static void control_characters_are_escaped(void) {
  CHECK(shows("a\nb", 3, "a\\x0ab") && shows("\0", 1, "\\x00") && shows("\x1b[31m", 5, "\\x1b[31m"));
  CHECK(shows("\x7f", 1, "\\x7f") && shows("\xc2\x85", 2, "\\xc2\\x85") && shows("\xc2\xa0", 2, "\xc2\xa0"));
}

static void bytes_that_are_not_utf8_are_escaped(void) {
  CHECK(shows("\xff", 1, "\\xff") && shows("a\x80z", 3, "a\\x80z"));
  CHECK(shows("\xe2\x82", 2, "\\xe2\\x82") && shows("\xc3", 1, "\\xc3")); /* a character that is cut off */
  CHECK(shows("\xed\xa0\x80", 3, "\\xed\\xa0\\x80"));                     /* a surrogate */
}

/* The result is cut between characters, is valid UTF-8, and fits its buffer. */
static void long_texts_are_cut(void) {
  char text[4 * XT_PRINTABLE_MAX];
  for (size_t size = XT_PRINTABLE_MAX - 8; size < XT_PRINTABLE_MAX + 8; size++) {
    memset(text, 'a', sizeof text);
    xt_printable shown = xt_printable_text(text, size);
    bool cut = size > XT_PRINTABLE_MAX;
    CHECK(strlen(shown.text) == (cut ? XT_PRINTABLE_MAX + 3 : size));
    CHECK(!strcmp(shown.text + strlen(shown.text) - 3, cut ? "..." : "aaa"));
  }
  static const char *const characters[] = {"\xc3\xbc", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xff", "\n"};
  for (size_t i = 0; i < COUNT_OF(characters); i++) {
    size_t width = strlen(characters[i]);
    for (size_t at = 0; at + width <= sizeof text; at += width) memcpy(text + at, characters[i], width);
    xt_printable shown = xt_printable_text(text, sizeof text / width * width);
    size_t length = strlen(shown.text);
    CHECK(length <= XT_PRINTABLE_MAX + 3 && length > XT_PRINTABLE_MAX - 4);
    CHECK(!strcmp(shown.text + length - 3, "..."));
    CHECK(xt_utf8_check((const uint8_t *)shown.text, length) == XT_UTF8_VALID);
  }
}

int main(void) {
  return RUN_TESTS("printable", text_stays_as_it_is, control_characters_are_escaped,
                   bytes_that_are_not_utf8_are_escaped, long_texts_are_cut);
}
