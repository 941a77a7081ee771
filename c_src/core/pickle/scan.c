#include "core/pickle/scan.h"

#include <string.h>

#include "core/base/cursor.h"

/* The argument of an opcode. */
typedef struct {
  char opcode;
  uint8_t bytes;   /* fixed size */
  uint8_t counted; /* size of a byte count, which is followed by the counted bytes */
  uint8_t lines;   /* number of text lines */
} shape;

static const shape shapes[] = {
    {'\x80', 1, 0, 0}, {'\x95', 8, 0, 0}, {'J', 4, 0, 0},    {'K', 1, 0, 0},    {'M', 2, 0, 0},    {'\x8a', 0, 1, 0},
    {'\x8b', 0, 4, 0}, {'G', 8, 0, 0},    {'I', 0, 0, 1},    {'L', 0, 0, 1},    {'F', 0, 0, 1},    {'S', 0, 0, 1},
    {'V', 0, 0, 1},    {'T', 0, 4, 0},    {'U', 0, 1, 0},    {'X', 0, 4, 0},    {'\x8c', 0, 1, 0}, {'\x8d', 0, 8, 0},
    {'B', 0, 4, 0},    {'C', 0, 1, 0},    {'\x8e', 0, 8, 0}, {'\x96', 0, 8, 0}, {'c', 0, 0, 2},    {'i', 0, 0, 2},
    {'q', 1, 0, 0},    {'r', 4, 0, 0},    {'h', 1, 0, 0},    {'j', 4, 0, 0},    {'p', 0, 0, 1},    {'g', 0, 0, 1},
    {'P', 0, 0, 1},    {'\x82', 1, 0, 0}, {'\x83', 2, 0, 0}, {'\x84', 4, 0, 0}};

static const char without_argument[] = "(012N\x88\x89]}\x8f)ldt\x91\x85\x86\x87"
                                       "aesu\x90\x93R\x81\x92obQ\x94\x97\x98";

/* Called once for each opcode that occurs. */
static const shape *shape_of(uint8_t opcode) {
  static const shape none = {0, 0, 0, 0};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    if ((uint8_t)shapes[i].opcode == opcode) return &shapes[i];
  return opcode && strchr(without_argument, (char)opcode) ? &none : NULL;
}

/* Scans one opcode. Also returns XT_SCAN_SHORT if it is complete and not STOP; `at` is then the next opcode. */
static xt_pickle_scan_result scan_one(const uint8_t *data, size_t size, xt_pickle_scan_state *s, const shape *shape) {
  s->wanted = 1;
  if (s->at == size) return XT_SCAN_SHORT;
  if (data[s->at] == '.') return s->at++, XT_SCAN_END;
  if (!shape) return XT_SCAN_INVALID;
  size_t next = s->at + 1, left = size - next;
  s->wanted = 1u + shape->bytes + shape->counted;
  if (left < (size_t)shape->bytes + shape->counted) return XT_SCAN_SHORT;
  uint64_t count = xt_le(data + next, shape->counted);
  if (count > left - shape->counted) {
    s->wanted = count < UINT64_MAX - 16 ? count + shape->counted + 1 : UINT64_MAX;
    return XT_SCAN_SHORT;
  }
  next += shape->bytes + shape->counted + (size_t)count;
  if (s->searched > next) next = s->searched;
  for (; s->line < shape->lines; s->line++) {
    const uint8_t *end = memchr(data + next, '\n', size - next);
    s->wanted = size - s->at + 1;
    s->searched = size;
    if (!end) return XT_SCAN_SHORT;
    s->searched = next = (size_t)(end - data) + 1;
  }
  s->at = next;
  s->line = 0;
  s->searched = 0;
  return XT_SCAN_SHORT;
}

xt_pickle_scan_result xt_pickle_scan(const uint8_t *data, size_t size, xt_pickle_scan_state *s) {
  const shape *known[256] = {NULL};
  for (;;) {
    size_t before = s->at;
    uint8_t opcode = before < size ? data[before] : 0;
    if (before < size && !known[opcode]) known[opcode] = shape_of(opcode);
    xt_pickle_scan_result result = scan_one(data, size, s, known[opcode]);
    if (result != XT_SCAN_SHORT || s->at == before) return result;
    if (s->at - before >= XT_SCAN_PAYLOAD) s->payload += s->at - before;
  }
}
