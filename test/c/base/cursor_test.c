#include "core/base/cursor.h"

#include "check.h"

static const uint8_t bytes[] = {0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x88, 0xff, 0xfe};

static void takes_bytes_in_order(void) {
  xt_cursor in = {.data = bytes, .size = sizeof bytes};
  CHECK(xt_cursor_left(&in) == 10);
  CHECK(xt_cursor_take(&in, 3) == bytes && xt_cursor_left(&in) == 7);
  CHECK(xt_cursor_take(&in, 0) == bytes + 3);
  CHECK(xt_cursor_take(&in, 7) == bytes + 3 && xt_cursor_left(&in) == 0);
  CHECK(xt_cursor_take(&in, 0) == bytes + 10);
}

static void reads_little_endian_numbers(void) {
  xt_cursor in = {.data = bytes, .size = sizeof bytes};
  CHECK(xt_cursor_le(&in, 8) == 0x8807060504030201 && xt_cursor_le(&in, 2) == 0xfeff);
  CHECK(xt_le(bytes, 0) == 0 && xt_le(bytes, 1) == 1 && xt_le(bytes + 6, 3) == 0xff8807);
}

/* After the first read past the end every further one fails, also one that would fit. */
static void stays_failed(void) {
  xt_cursor in = {.data = bytes, .size = 3};
  CHECK(xt_cursor_le(&in, 1) == 1);
  CHECK(!xt_cursor_take(&in, 3));
  CHECK(!xt_cursor_take(&in, 1) && xt_cursor_le(&in, 2) == 0);
  in = (xt_cursor){.data = bytes, .size = 3};
  CHECK(!xt_cursor_take(&in, SIZE_MAX) && xt_cursor_le(&in, 1) == 0);
}

int main(void) { return RUN_TESTS("cursor", takes_bytes_in_order, reads_little_endian_numbers, stays_failed); }
