#include "core/base/decimal.h"

#include <string.h>

#include "check.h"
#include "core/base/buffer.h"

static const struct {
  uint64_t number;
  const char *text;
} cases[] = {{0, "0"}, {9, "9"}, {10, "10"}, {1234567890, "1234567890"}, {UINT64_MAX, "18446744073709551615"}};

static void writes_digits_without_terminator(void) {
  for (size_t i = 0; i < COUNT_OF(cases); i++) {
    char to[XT_DECIMAL_DIGITS + 1];
    memset(to, '#', sizeof to);
    size_t size = xt_decimal(to, cases[i].number);
    CHECK(size == strlen(cases[i].text) && !memcmp(to, cases[i].text, size) && to[size] == '#');
  }
}

static void appends_digits_to_a_buffer(void) {
  for (size_t i = 0; i < COUNT_OF(cases); i++) {
    xt_buffer buffer = {0};
    xt_buffer_decimal(&buffer, cases[i].number);
    CHECK(buffer.size == strlen(cases[i].text) && !memcmp(buffer.data, cases[i].text, buffer.size));
    xt_buffer_free(&buffer);
  }
}

static void agrees_with_printf(void) {
  char to[XT_DECIMAL_DIGITS], expected[32];
  for (uint64_t number = 1; number < UINT64_MAX / 7; number = number * 7 + 3) {
    int size = snprintf(expected, sizeof expected, "%llu", (unsigned long long)number);
    CHECK(xt_decimal(to, number) == (size_t)size && !memcmp(to, expected, (size_t)size));
  }
}

int main(void) {
  return RUN_TESTS("decimal", writes_digits_without_terminator, appends_digits_to_a_buffer, agrees_with_printf);
}
