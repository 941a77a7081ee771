#include "core/base/utf8.h"

#include <stdbool.h>
#include <string.h>

#include "check.h"

static bool in(uint8_t byte, uint8_t from, uint8_t to) { return byte >= from && byte <= to; }

/* The grammar of RFC 3629, one character at a time; with surrogates as a separate alternative. */
static size_t character(const uint8_t *s, size_t size, bool *surrogate) {
  uint8_t lead = s[0];
  uint8_t tail = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  if (lead < 0x80) return 1;
  if (!in(lead, 0xc2, 0xf4) || size < (size_t)tail + 1) return 0;
  for (int i = 1; i <= tail; i++)
    if (!in(s[i], 0x80, 0xbf)) return 0;
  if (lead == 0xe0 && !in(s[1], 0xa0, 0xbf)) return 0;
  if (lead == 0xf0 && !in(s[1], 0x90, 0xbf)) return 0;
  if (lead == 0xf4 && !in(s[1], 0x80, 0x8f)) return 0;
  if (lead == 0xed && in(s[1], 0xa0, 0xbf)) *surrogate = true;
  return (size_t)tail + 1;
}

static xt_utf8 expected(const uint8_t *s, size_t size) {
  bool surrogate = false;
  for (size_t at = 0; at < size;) {
    size_t length = character(s + at, size - at, &surrogate);
    if (!length) return XT_UTF8_INVALID;
    at += length;
  }
  return surrogate ? XT_UTF8_SURROGATES : XT_UTF8_VALID;
}

static void knows_valid_texts(void) {
  static const char *const texts[] = {"",
                                      "a",
                                      "plain ASCII of more than eight bytes",
                                      "gr\xc3\xbc\xc3\x9f",
                                      "\xe2\x82\xac",
                                      "\xf0\x9f\x98\x80 and text after it"};
  for (size_t i = 0; i < COUNT_OF(texts); i++)
    CHECK(xt_utf8_check((const uint8_t *)texts[i], strlen(texts[i])) == XT_UTF8_VALID);
  CHECK(xt_utf8_check((const uint8_t *)"a\0b", 3) == XT_UTF8_VALID);
}

static void tells_lone_surrogates(void) {
  CHECK(xt_utf8_check((const uint8_t *)"\xed\xa0\x80", 3) == XT_UTF8_SURROGATES);
  CHECK(xt_utf8_check((const uint8_t *)"ok \xed\xbf\xbf ok", 9) == XT_UTF8_SURROGATES);
  CHECK(xt_utf8_check((const uint8_t *)"\xed\x9f\xbf\xee\x80\x80", 6) == XT_UTF8_VALID); /* their neighbors */
  CHECK(xt_utf8_check((const uint8_t *)"\xed\xa0\x80\xff", 4) == XT_UTF8_INVALID);
}

/* Every combination of the bytes at which the grammar changes, at every length up to four. */
static void agrees_with_the_grammar(void) {
  static const uint8_t edges[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf,
                                  0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff};
  enum { EDGES = sizeof edges };
  for (int i = 0; i < EDGES * EDGES * EDGES * EDGES; i++) {
    uint8_t text[] = {edges[i % EDGES], edges[i / EDGES % EDGES], edges[i / EDGES / EDGES % EDGES],
                      edges[i / EDGES / EDGES / EDGES]};
    for (size_t size = 1; size <= 4; size++) CHECK(xt_utf8_check(text, size) == expected(text, size));
  }
}

/* ASCII is checked eight bytes at a time: a bad byte is found wherever it stands. */
static void finds_a_bad_byte_anywhere(void) {
  for (size_t size = 1; size < 40; size++)
    for (size_t at = 0; at < size; at++) {
      uint8_t text[40];
      memset(text, 'a', sizeof text);
      CHECK(xt_utf8_check(text, size) == XT_UTF8_VALID);
      text[at] = 0xff;
      CHECK(xt_utf8_check(text, size) == XT_UTF8_INVALID);
      text[at] = 0xc3; /* the second byte is missing */
      CHECK(xt_utf8_check(text, size) == XT_UTF8_INVALID);
    }
}

/* What is written for a code is what the grammar says, and each code is written differently. */
static void writes_every_character(void) {
  char text[4] = "", before[4] = "";
  for (uint32_t c = 0; c < 0x110000; c++) {
    size_t size = xt_utf8_encode(text, c), bits = size == 1 ? 7 : size == 2 ? 11 : size == 3 ? 16 : 21;
    CHECK(c >> bits == 0 && (size == 1 || c >> (size == 2 ? 7 : 5 * size - 4)));
    CHECK(xt_utf8_check((uint8_t *)text, size) == (c >= 0xd800 && c < 0xe000 ? XT_UTF8_SURROGATES : XT_UTF8_VALID));
    CHECK(c == 0 || memcmp(before, text, 4) < 0);
    memcpy(before, text, 4);
  }
}

int main(void) {
  return RUN_TESTS("utf8", knows_valid_texts, tells_lone_surrogates, agrees_with_the_grammar, finds_a_bad_byte_anywhere,
                   writes_every_character);
}
