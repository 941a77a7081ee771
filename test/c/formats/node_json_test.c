/* JSON texts as node trees: what is accepted, what is refused, and what becomes of it. */
#include "core/formats/node_json.h"

#include "check.h"
#include "core/formats/json.h"
#include "failing.h"
#include "node_text.h"

static xt_status read_text(const char *text, size_t size, const char *expected) {
  xt_arena arena = {0};
  xt_error error;
  xt_node *root = NULL;
  memset(&error, 0, sizeof error);
  /* A copy of exactly this size, so that the sanitizer reports a read past its end. */
  uint8_t *copy = malloc(size ? size : 1);
  memcpy(copy, text, size);
  xt_status status = xt_node_from_json(copy, size, &arena, &root, &error);
  if (status == XT_STATUS_ok && !expected) fprintf(stderr, "not refused: %.*s\n", (int)size, text);
  if (status == XT_STATUS_ok) CHECK(root && expected && node_reads(root, expected));
  else CHECK(error.status == status && error.message[0] && error.offset >= -1 && error.offset <= (int64_t)size);
  xt_arena_free(&arena);
  free(copy);
  return status;
}

static void reads_values(void) {
  static const struct {
    const char *json, *tree;
  } cases[] = {
      {"null", "None"},
      {"true", "True"},
      {" \t\r\nfalse \n", "False"},
      {"0", "0"},
      {"-0", "0"},
      {"-17", "-17"},
      {"9223372036854775807", "9223372036854775807"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"1.5", "1.5f"},
      {"-2.5e-1", "-0.25f"},
      {"1e3", "1000f"},
      {"1E+3", "1000f"},
      {"0.0", "0f"},
      {"\"\"", "''"},
      {"\"text of more than eight bytes\"", "'text of more than eight bytes'"},
      {"[]", "[]"},
      {"{}", "{}"},
      {"[1, [2, []], {\"a\": [3]}]", "[1, [2, []], {'a': [3]}]"},
      {"{\"b\": 1, \"a\": {\"\": null}}", "{'b': 1, 'a': {'': None}}"},
      {" [ 1 , 2 ] ", "[1, 2]"},
  };
  for (size_t i = 0; i < COUNT_OF(cases); i++)
    CHECK(read_text(cases[i].json, strlen(cases[i].json), cases[i].tree) == XT_STATUS_ok);
}

static void unescapes_strings(void) {
  static const struct {
    const char *json, *tree;
  } cases[] = {
      {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "'\"\\x5c/\\x08\\x0c\\x0a\\x0d\\x09'"},
      {"\"\\u0041\\u00e9\\u20AC\"", "'A\\xc3\\xa9\\xe2\\x82\\xac'"},
      {"\"\\ud83d\\ude00\"", "'\\xf0\\x9f\\x98\\x80'"},
      {"\"\\u0000\"", "'\\x00'"},
      {"\"gr\xc3\xbc\xc3\x9f\"", "'gr\\xc3\\xbc\\xc3\\x9f'"},
      {"{\"\\u0061\": 1}", "{'a': 1}"},
  };
  for (size_t i = 0; i < COUNT_OF(cases); i++)
    CHECK(read_text(cases[i].json, strlen(cases[i].json), cases[i].tree) == XT_STATUS_ok);
}

static void refuses_what_json_does_not_have(void) {
  static const char *const texts[] = {"",
                                      " ",
                                      "nul",
                                      "nulll",
                                      "True",
                                      "NaN",
                                      "Infinity",
                                      "undefined",
                                      "'a'",
                                      "a",
                                      "+1",
                                      "01",
                                      "-01",
                                      "-",
                                      ".5",
                                      "1.",
                                      "1.e3",
                                      "1e",
                                      "1e+",
                                      "0x10",
                                      "1 2",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "[",
                                      "]",
                                      "{",
                                      "}",
                                      "[1",
                                      "[1,",
                                      "[1,]",
                                      "[,1]",
                                      "[1 2]",
                                      "[1}",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{\"a\":1",
                                      "{\"a\":1,}",
                                      "{\"a\" 1}",
                                      "{a:1}",
                                      "{1:2}",
                                      "{\"a\":1 \"b\":2}",
                                      "{\"a\":1,\"a\":2}",
                                      "{\"a\":1,\"\\u0061\":2}",
                                      "\"",
                                      "\"a",
                                      "\"\\\"",
                                      "\"\\",
                                      "\"\\x41\"",
                                      "\"\\u12\"",
                                      "\"\\u12g4\"",
                                      "\"\\ud83d\"",
                                      "\"\\ud83d\\u0041\"",
                                      "\"\\ude00\"",
                                      "\"\n\"",
                                      "\"\x01\"",
                                      "\"\xff\"",
                                      "\"\xc3\"",
                                      "\"\xed\xa0\x80\"",
                                      "// comment\n1",
                                      "[1]/**/",
                                      "{}{}"};
  for (size_t i = 0; i < COUNT_OF(texts); i++) CHECK(read_text(texts[i], strlen(texts[i]), NULL) == XT_STATUS_corrupt);
  CHECK(read_text("1\0", 2, NULL) == XT_STATUS_corrupt && read_text("{}\0{", 4, NULL) == XT_STATUS_corrupt);
  CHECK(read_text("\0", 1, NULL) == XT_STATUS_corrupt && read_text("[1\0]", 4, NULL) == XT_STATUS_corrupt);
}

static void limits_nesting(void) {
  char text[2 * XT_JSON_DEPTH + 3];
  char tree[sizeof text];
  for (int depth = XT_JSON_DEPTH; depth <= XT_JSON_DEPTH + 1; depth++) {
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    text[2 * depth] = 0;
    strcpy(tree, text);
    CHECK((read_text(text, strlen(text), tree) == XT_STATUS_ok) == (depth == XT_JSON_DEPTH));
  }
}

/* Every shorter text is refused, since the last byte closes the object. */
static void refuses_every_truncation(void) {
  static const char text[] =
      "{\"a\": [1, 2.5e3, true, null, \"\\u00e9\\ud83d\\ude00\"], \"b\": {\"c\": \"plain text\"}}";
  for (size_t size = 0; size + 1 < sizeof text; size++) CHECK(read_text(text, size, NULL) == XT_STATUS_corrupt);
}

static void survives_every_flipped_bit(void) {
  char text[] = "{\"a\": [1, 2.5e3, true], \"b\\n\": {\"c\": \"plain text\"}}";
  for (size_t bit = 0; bit < 8 * (sizeof text - 1); bit++) {
    xt_arena arena = {0};
    xt_error error;
    xt_node *root;
    text[bit / 8] ^= (char)(1 << bit % 8);
    xt_node_from_json((const uint8_t *)text, sizeof text - 1, &arena, &root, &error);
    text[bit / 8] ^= (char)(1 << bit % 8);
    xt_arena_free(&arena);
  }
}

static void reports_failed_allocations(void) {
  static const char text[] = "{\"a\": [1, 2, 3], \"b\": {\"c\": \"\\n\"}}";
  fail_arenas = true;
  for (fail_at = 0;; fail_at++) {
    xt_arena arena = {0};
    xt_error error;
    xt_node *root;
    allocations = 0;
    xt_status status = xt_node_from_json((const uint8_t *)text, sizeof text - 1, &arena, &root, &error);
    bool failed = allocations > fail_at;
    xt_arena_free(&arena);
    CHECK(status == (failed ? XT_STATUS_no_memory : XT_STATUS_ok));
    if (!failed) break;
  }
  fail_at = -1;
  fail_arenas = false;
}

int main(void) {
  return RUN_TESTS("node_json", reads_values, unescapes_strings, refuses_what_json_does_not_have, limits_nesting,
                   refuses_every_truncation, survives_every_flipped_bit, reports_failed_allocations);
}
