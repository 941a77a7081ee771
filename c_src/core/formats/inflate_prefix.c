#include "core/formats/inflate_prefix.h"

#include <string.h>

enum { MAX_BITS = 15, LITERALS = 288, DISTANCES = 30, LENGTH_CODES = 19, END_OF_BLOCK = 256 };

typedef struct {
  const uint8_t *in;
  size_t in_size, at;
  uint32_t bits; /* that are read but not used */
  int bit_count;
  bool short_, invalid; /* the input has ended; it is wrong */
  uint8_t *out;
  size_t room, size;
} inflater;

/* A canonical Huffman code: the number of codes of each length, and the symbols ordered by their codes. */
typedef struct {
  uint16_t count[MAX_BITS + 1], symbols[LITERALS];
} code;

static bool stopped(const inflater *f) { return f->short_ || f->invalid || f->size == f->room; }

static uint32_t take_bits(inflater *f, int count) {
  while (f->bit_count < count) {
    if (f->at == f->in_size) return f->short_ = true, 0;
    f->bits |= (uint32_t)f->in[f->at++] << f->bit_count;
    f->bit_count += 8;
  }
  uint32_t value = f->bits & ((1u << count) - 1);
  f->bits >>= count;
  f->bit_count -= count;
  return value;
}

static void put_byte(inflater *f, uint8_t byte) {
  if (f->size < f->room) f->out[f->size++] = byte;
}

/* Returns false if there are more codes than their lengths allow. */
static bool make_code(code *c, const uint8_t *lengths, int count) {
  uint16_t offsets[MAX_BITS + 1] = {0};
  int left = 1;
  memset(c->count, 0, sizeof c->count);
  for (int i = 0; i < count; i++) c->count[lengths[i]]++;
  c->count[0] = 0;
  for (int length = 1; length <= MAX_BITS; length++) {
    left = 2 * left - c->count[length];
    if (left < 0) return false;
    if (length < MAX_BITS) offsets[length + 1] = (uint16_t)(offsets[length] + c->count[length]);
  }
  for (int i = 0; i < count; i++)
    if (lengths[i]) c->symbols[offsets[lengths[i]]++] = (uint16_t)i;
  return true;
}

static int take_symbol(inflater *f, const code *c) {
  int value = 0, first = 0, index = 0;
  for (int length = 1; length <= MAX_BITS; length++) {
    value |= (int)take_bits(f, 1);
    if (f->short_) return END_OF_BLOCK;
    if (value - first < c->count[length]) return c->symbols[index + value - first];
    index += c->count[length];
    first = (first + c->count[length]) << 1;
    value <<= 1;
  }
  f->invalid = true;
  return END_OF_BLOCK;
}

static void copy_match(inflater *f, int symbol, const code *distances) {
  static const uint16_t lengths[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                     31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
  static const uint8_t length_bits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                        2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
  static const uint16_t starts[] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                    33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                    1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
  symbol -= END_OF_BLOCK + 1;
  if (symbol >= 29) {
    f->invalid = true;
    return;
  }
  size_t length = lengths[symbol] + take_bits(f, length_bits[symbol]);
  int at = take_symbol(f, distances);
  if (f->short_ || f->invalid) return;
  f->invalid = at >= DISTANCES;
  if (f->invalid) return;
  size_t distance = starts[at] + take_bits(f, at < 2 ? 0 : at / 2 - 1);
  f->invalid = !f->short_ && distance > f->size;
  for (; length && !stopped(f); length--) put_byte(f, f->out[f->size - distance]);
}

static void run_block(inflater *f, const code *literals, const code *distances) {
  while (!stopped(f)) {
    int symbol = take_symbol(f, literals);
    if (f->short_ || f->invalid || symbol == END_OF_BLOCK) return;
    if (symbol < END_OF_BLOCK) put_byte(f, (uint8_t)symbol);
    else copy_match(f, symbol, distances);
  }
}

static void run_stored(inflater *f) {
  f->bits = 0, f->bit_count = 0;
  if (f->in_size - f->at < 4) {
    f->short_ = true;
    return;
  }
  size_t size = f->in[f->at] | (size_t)f->in[f->at + 1] << 8;
  f->at += 4;
  for (; size && !stopped(f); size--) {
    f->short_ = f->at == f->in_size;
    if (!f->short_) put_byte(f, f->in[f->at++]);
  }
}

static void run_fixed(inflater *f) {
  uint8_t lengths[LITERALS], distance_lengths[DISTANCES];
  code literals, distances;
  for (int i = 0; i < LITERALS; i++) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
  memset(distance_lengths, 5, sizeof distance_lengths);
  make_code(&literals, lengths, LITERALS);
  make_code(&distances, distance_lengths, DISTANCES);
  run_block(f, &literals, &distances);
}

/* Reads the lengths of `count` codes, which are themselves compressed. */
static void read_lengths(inflater *f, const code *c, uint8_t *lengths, int count) {
  for (int i = 0; i < count && !f->short_ && !f->invalid;) {
    int symbol = take_symbol(f, c), repeat = 1;
    if (f->short_) return;
    uint8_t length = symbol < 16 ? (uint8_t)symbol : symbol == 16 && i ? lengths[i - 1] : 0;
    f->invalid |= symbol > 18 || (symbol == 16 && !i);
    if (symbol == 16) repeat = 3 + (int)take_bits(f, 2);
    else if (symbol == 17) repeat = 3 + (int)take_bits(f, 3);
    else if (symbol == 18) repeat = 11 + (int)take_bits(f, 7);
    f->invalid |= repeat > count - i;
    for (; repeat && i < count; repeat--) lengths[i++] = length;
  }
}

static void run_dynamic(inflater *f) {
  static const uint8_t order[LENGTH_CODES] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  uint8_t lengths[LITERALS + 32] = {0}, length_lengths[LENGTH_CODES] = {0};
  code first, literals, distances;
  int literal_count = (int)take_bits(f, 5) + 257, distance_count = (int)take_bits(f, 5) + 1;
  int length_count = (int)take_bits(f, 4) + 4;
  for (int i = 0; i < length_count; i++) length_lengths[order[i]] = (uint8_t)take_bits(f, 3);
  f->invalid = literal_count > 286 || distance_count > DISTANCES || !make_code(&first, length_lengths, LENGTH_CODES);
  if (f->invalid || f->short_) return;
  read_lengths(f, &first, lengths, literal_count + distance_count);
  if (f->invalid || f->short_) return;
  f->invalid =
      !make_code(&literals, lengths, literal_count) || !make_code(&distances, lengths + literal_count, distance_count);
  if (!f->invalid) run_block(f, &literals, &distances);
}

bool xt_inflate_prefix(const uint8_t *packed, size_t packed_size, uint8_t *to, size_t room, size_t *size) {
  inflater f = {.in = packed, .in_size = packed_size, .out = to, .room = room};
  bool last = false;
  while (!last && !stopped(&f)) {
    last = take_bits(&f, 1);
    switch (take_bits(&f, 2)) {
    case 0: run_stored(&f); break;
    case 1: run_fixed(&f); break;
    case 2: run_dynamic(&f); break;
    default: f.invalid = true;
    }
  }
  *size = f.size;
  return !f.invalid;
}
