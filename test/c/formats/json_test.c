/* The pull interface of the JSON reader; test/c/pickle/node_json_test.c has the rules of the language. */
#include "core/formats/json.h"

#include <string.h>

#include "check.h"
#include "core/base/utf8.h"
#include "failing.h"

static void pulls_values_one_by_one(void) {
  static const char text[] = "{\"shape\": [2, -3], \"name\": \"x\\ty\", \"rest\": []} ";
  xt_arena arena = {0};
  xt_error error;
  xt_json json;
  xt_json_string string;
  int64_t first = 0, second = 0;
  xt_json_begin(&json, (const uint8_t *)text, sizeof text - 1, &arena);
  CHECK(xt_json_peek(&json) == '{' && xt_json_object(&json));
  CHECK(xt_json_key(&json, &string) && string.size == 5 && !memcmp(string.data, "shape", 5));
  CHECK(xt_json_array(&json));
  CHECK(xt_json_item(&json) && xt_json_integer(&json, &first) && first == 2);
  CHECK(xt_json_item(&json) && xt_json_integer(&json, &second) && second == -3);
  CHECK(!xt_json_item(&json));
  CHECK(xt_json_key(&json, &string) && xt_json_text(&json, &string));
  CHECK(string.size == 3 && !memcmp(string.data, "x\ty", 3));
  CHECK(xt_json_key(&json, &string) && xt_json_array(&json) && !xt_json_item(&json));
  CHECK(!xt_json_key(&json, &string));
  CHECK(xt_json_end(&json, &error) == XT_STATUS_ok);
  xt_arena_free(&arena);
}

/* After the first error every call returns false, and the end reports it. */
static void stays_failed(void) {
  static const char text[] = "{\"a\": \"text\", \"b\": 1}";
  xt_arena arena = {0};
  xt_error error;
  xt_json json;
  xt_json_string string;
  int64_t number;
  double fraction;
  xt_json_begin(&json, (const uint8_t *)text, sizeof text - 1, &arena);
  CHECK(xt_json_object(&json) && xt_json_key(&json, &string));
  CHECK(!xt_json_integer(&json, &number)); /* it is a string */
  CHECK(!xt_json_text(&json, &string) && !xt_json_key(&json, &string) && !xt_json_peek(&json));
  CHECK(!xt_json_integer(&json, &number) && !xt_json_double(&json, &fraction) && !xt_json_word(&json, "null"));
  CHECK(xt_json_end(&json, &error) == XT_STATUS_corrupt && error.offset == 6);

  xt_json_begin(&json, (const uint8_t *)text, sizeof text - 1, &arena);
  CHECK(xt_json_object(&json) && !xt_json_fail(&json, "duplicate name") && !xt_json_key(&json, &string));
  CHECK(xt_json_end(&json, &error) == XT_STATUS_corrupt && strstr(error.message, "duplicate name"));
  xt_arena_free(&arena);
}

/* A number has at most 63 characters. */
static void refuses_long_numbers(void) {
  for (size_t size = 63; size <= 64; size++) {
    char text[64];
    xt_arena arena = {0};
    xt_json json;
    double value;
    memset(text, '1', size);
    xt_json_begin(&json, (const uint8_t *)text, size, &arena);
    CHECK(xt_json_double(&json, &value) == (size == 63));
    xt_arena_free(&arena);
  }
}

static void reports_that_there_is_no_memory(void) {
  static const char text[] = "\"an \\n escape\"";
  xt_arena arena = {0};
  xt_error error;
  xt_json json;
  xt_json_string string;
  xt_json_begin(&json, (const uint8_t *)text, sizeof text - 1, &arena);
  allocations = 0, fail_at = 0;
  CHECK(!xt_json_text(&json, &string));
  fail_at = -1;
  CHECK(xt_json_end(&json, &error) == XT_STATUS_no_memory);
  xt_arena_free(&arena);
}

/* Every character of Latin-1, and strings that are read back. */
static void writes_strings(void) {
  char all[512];
  size_t size = 0;
  xt_buffer out = {0};
  xt_arena arena = {0};
  xt_error error;
  xt_json json;
  xt_json_string read;
  for (uint32_t c = 0; c < 256; c++) size += xt_utf8_encode(all + size, c);
  xt_json_put_text(&out, all, size);
  xt_json_begin(&json, out.data, out.size, &arena);
  CHECK(xt_json_text(&json, &read) && xt_json_end(&json, &error) == XT_STATUS_ok);
  CHECK(read.size == size && !memcmp(read.data, all, size));
  out.size = 0;
  xt_json_put_text(&out, "a\"\\\n\0z", 6);
  xt_json_put_text(&out, "", 0);
  CHECK(out.size == 22 && !memcmp(out.data, "\"a\\\"\\\\\\u000a\\u0000z\"\"\"", out.size));
  xt_buffer_free(&out);
  xt_arena_free(&arena);
}

/* Every character at every position of texts of up to 20 bytes. */
static void escapes_at_every_position(void) {
  for (size_t size = 1; size <= 20; size++)
    for (size_t at = 0; at < size; at++)
      for (uint32_t c = 0; c < 128; c++) {
        char text[20], expected[32];
        xt_buffer out = {0};
        memset(text, 'x', size);
        text[at] = (char)c;
        const char *form = c < 0x20                ? "\"%.*s\\u%04x%.*s\""
                           : c == '"' || c == '\\' ? "\"%.*s\\%c%.*s\""
                                                   : "\"%.*s%c%.*s\"";
        int length = snprintf(expected, sizeof expected, form, (int)at, text, c, (int)(size - at - 1), text + at + 1);
        xt_json_put_text(&out, text, size);
        CHECK(out.size == (size_t)length && !memcmp(out.data, expected, out.size));
        xt_buffer_free(&out);
      }
}

int main(void) {
  return RUN_TESTS("json", pulls_values_one_by_one, stays_failed, refuses_long_numbers, reports_that_there_is_no_memory,
                   writes_strings, escapes_at_every_position);
}
