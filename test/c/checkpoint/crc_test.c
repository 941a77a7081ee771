/* The CRC of a whole from those of its parts. */
#include "core/checkpoint/crc.h"

#include <libdeflate.h>
#include <stdlib.h>

#include "check.h"

enum { SIZE = 100000 };

static void parts_in_any_order(void) {
  static uint8_t data[SIZE];
  for (int i = 0; i < SIZE; i++) data[i] = (uint8_t)(i * 7 + i / 300);
  uint32_t expected = libdeflate_crc32(0, data, SIZE);
  for (size_t part = 1; part <= 2 * SIZE; part = part * 3 + 1) {
    uint32_t whole = 0;
    for (size_t end = SIZE; end > 0;) { /* from the last to the first */
      size_t at = end > part ? end - part : 0;
      whole ^= xt_crc_shift(libdeflate_crc32(0, data + at, end - at), SIZE - end);
      end = at;
    }
    CHECK(whole == expected);
  }
}

static void long_shifts(void) {
  CHECK(xt_crc_shift(0x12345678, 0) == 0x12345678 && xt_crc_shift(0, 1000) == 0);
  /* shifts add up, also beyond 4 GiB */
  uint64_t large = ((uint64_t)1 << 40) + 12345;
  CHECK(xt_crc_shift(xt_crc_shift(0x12345678, large), 999) == xt_crc_shift(0x12345678, large + 999));
}

int main(void) { return RUN_TESTS("crc", parts_in_any_order, long_shifts); }
