#include "core/formats/inflate_prefix.h"

#include <libdeflate.h>
#include <string.h>

#include "check.h"

enum { SIZE = 100000 };

/* Content of three kinds: it compresses well, not at all, and somewhat. */
static void fill(uint8_t *data, int kind) {
  uint32_t random = 1;
  for (size_t i = 0; i < SIZE; i++) {
    random = random * 1664525 + 1013904223;
    data[i] = kind == 0 ? (uint8_t)(i / 1000) : kind == 1 ? (uint8_t)(random >> 24) : "abcdefgh"[random >> 29];
  }
}

static void is_a_prefix_of_the_content(void) {
  uint8_t *data = malloc(SIZE), *packed = malloc(2 * SIZE), *to = malloc(SIZE + 10);
  for (int kind = 0; kind < 3; kind++)
    for (int level = 0; level <= 12; level++) {
      struct libdeflate_compressor *compressor = libdeflate_alloc_compressor(level);
      fill(data, kind);
      size_t packed_size = libdeflate_deflate_compress(compressor, data, SIZE, packed, 2 * SIZE), size = 0;
      libdeflate_free_compressor(compressor);
      for (size_t room = 0; room <= SIZE + 10; room += room < 300 ? 1 : 9973) {
        uint8_t *exact = malloc(room ? room : 1);
        CHECK(xt_inflate_prefix(packed, packed_size, exact, room, &size));
        CHECK(size == (room < SIZE ? room : SIZE) && !memcmp(exact, data, size));
        free(exact);
      }
      /* cut off input gives a shorter prefix */
      for (size_t cut = 0; cut < packed_size; cut += cut < 200 ? 1 : 997) {
        uint8_t *exact = malloc(cut ? cut : 1);
        memcpy(exact, packed, cut);
        CHECK(xt_inflate_prefix(exact, cut, to, SIZE, &size) && size <= SIZE && !memcmp(to, data, size));
        free(exact);
      }
    }
  free(data);
  free(packed);
  free(to);
}

static void survives_anything(void) {
  uint8_t packed[64], to[512];
  uint32_t random = 7;
  size_t size;
  for (int n = 0; n < 200000; n++) {
    for (size_t i = 0; i < sizeof packed; i++) packed[i] = (uint8_t)((random = random * 1664525 + 1013904223) >> 24);
    xt_inflate_prefix(packed, sizeof packed, to, sizeof to, &size);
    CHECK(size <= sizeof to);
  }
}

int main(void) { return RUN_TESTS("inflate_prefix", is_a_prefix_of_the_content, survives_anything); }
