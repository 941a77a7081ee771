#include "core/base/buffer.h"

#include "check.h"
#include "failing.h"

static void appends_in_order(void) {
  xt_buffer buffer = {0};
  xt_buffer_byte(&buffer, 'a');
  xt_buffer_put(&buffer, "bcd", 2);
  xt_buffer_put(&buffer, NULL, 0);
  xt_buffer_text(&buffer, "def");
  xt_buffer_fill(&buffer, '.', 3);
  xt_buffer_fill(&buffer, '.', 0);
  xt_buffer_decimal(&buffer, 42);
  CHECK(!buffer.failed && buffer.size == 11 && !memcmp(buffer.data, "abcdef...42", 11));
  xt_buffer_free(&buffer);
  CHECK(!buffer.data && !buffer.size && !buffer.failed);
}

static void writes_little_endian_numbers(void) {
  xt_buffer buffer = {0};
  xt_buffer_le(&buffer, 0x0102, 2);
  xt_buffer_le(&buffer, 0xfffefdfcfbfaf9f8, 8);
  xt_buffer_le(&buffer, 0x1234567890, 3); /* the higher bytes are cut off */
  static const uint8_t expected[] = {2, 1, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff, 0x90, 0x78, 0x56};
  CHECK(buffer.size == sizeof expected && !memcmp(buffer.data, expected, sizeof expected));
  xt_buffer_free(&buffer);
}

static void keeps_its_bytes_while_it_grows(void) {
  xt_buffer buffer = {0};
  for (int i = 0; i < 100000; i++) xt_buffer_byte(&buffer, (uint8_t)(i * 7));
  xt_buffer_fill(&buffer, 1, 1 << 20);
  CHECK(!buffer.failed && buffer.size == 100000 + (1 << 20));
  for (int i = 0; i < 100000; i++) CHECK(buffer.data[i] == (uint8_t)(i * 7));
  for (size_t i = 100000; i < buffer.size; i++) CHECK(buffer.data[i] == 1);
  xt_buffer_free(&buffer);
}

static void reserved_bytes_are_not_counted_until_used(void) {
  xt_buffer buffer = {0};
  uint8_t *to = xt_buffer_reserve(&buffer, 5000);
  CHECK(to && buffer.size == 0);
  memset(to, 'x', 5000);
  buffer.size += 5000;
  CHECK(xt_buffer_reserve(&buffer, 0) == buffer.data + 5000);
  xt_buffer_free(&buffer);
}

/* After a failed allocation every further append is ignored, also one that would fit. */
static void stays_failed(void) {
  xt_buffer buffer = {0};
  xt_buffer_text(&buffer, "abc");
  fail_at = allocations;
  xt_buffer_fill(&buffer, 'x', 10000);
  fail_at = -1;
  CHECK(buffer.failed && buffer.size == 3);
  xt_buffer_byte(&buffer, 'd');
  xt_buffer_text(&buffer, "e");
  xt_buffer_le(&buffer, 1, 8);
  xt_buffer_decimal(&buffer, 1);
  CHECK(buffer.failed && buffer.size == 3 && !xt_buffer_reserve(&buffer, 1));
  xt_buffer_free(&buffer);
  xt_buffer_byte(&buffer, 'a');
  CHECK(!buffer.failed && buffer.size == 1);
  xt_buffer_free(&buffer);
}

static void refuses_sizes_that_overflow(void) {
  xt_buffer buffer = {0};
  xt_buffer_byte(&buffer, 'a');
  CHECK(!xt_buffer_reserve(&buffer, SIZE_MAX) && buffer.failed && buffer.size == 1);
  xt_buffer_free(&buffer);
}

/* Memory of others is neither grown nor freed. */
static void borrowed_memory_is_replaced(void) {
  uint8_t memory[4];
  xt_buffer buffer = {.data = memory, .room = sizeof memory, .borrowed = true};
  xt_buffer_text(&buffer, "abcd");
  CHECK(buffer.borrowed && !memcmp(memory, "abcd", 4));
  xt_buffer_text(&buffer, "ef");
  CHECK(!buffer.borrowed && buffer.data != memory && buffer.size == 6 && !memcmp(buffer.data, "abcdef", 6));
  xt_buffer_free(&buffer);
  buffer = (xt_buffer){.data = memory, .room = sizeof memory, .borrowed = true};
  CHECK(!xt_buffer_reserve(&buffer, SIZE_MAX) && buffer.failed);
  xt_buffer_free(&buffer);
  CHECK(!buffer.data);
}

int main(void) {
  return RUN_TESTS("buffer", appends_in_order, writes_little_endian_numbers, keeps_its_bytes_while_it_grows,
                   reserved_bytes_are_not_counted_until_used, stays_failed, refuses_sizes_that_overflow,
                   borrowed_memory_is_replaced);
}
