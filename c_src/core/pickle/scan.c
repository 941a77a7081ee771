#include "core/pickle/scan.h"

#include <string.h>

#include "core/base/cursor.h"
#include "core/pickle/opcodes.h"

/* Scans one opcode. Also returns XT_SCAN_SHORT if it is complete and not STOP; `at` is then the next opcode. */
static xt_pickle_scan_result scan_one(const uint8_t *data, size_t size, xt_pickle_scan_state *s) {
  s->wanted = 1;
  if (s->at == size) return XT_SCAN_SHORT;
  const xt_opcode_info *opcode = &xt_opcodes[data[s->at]];
  if (data[s->at] == XT_OP_STOP) return s->at++, XT_SCAN_END;
  if (!opcode->name) return XT_SCAN_INVALID;
  size_t next = s->at + 1, left = size - next;
  s->wanted = 1u + opcode->bytes + opcode->counted;
  if (left < (size_t)opcode->bytes + opcode->counted) return XT_SCAN_SHORT;
  uint64_t count = xt_le(data + next, opcode->counted);
  if (count > left - opcode->counted) {
    s->wanted = count < XT_SCAN_MOST ? count + opcode->counted + 1 : XT_SCAN_MOST;
    return XT_SCAN_SHORT;
  }
  next += opcode->bytes + opcode->counted + (size_t)count;
  if (s->searched > next) next = s->searched;
  for (; s->line < opcode->lines; s->line++) {
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
  for (;;) {
    size_t before = s->at;
    xt_pickle_scan_result result = scan_one(data, size, s);
    if (result != XT_SCAN_SHORT || s->at == before) return result;
    if (s->at - before >= XT_SCAN_PAYLOAD) s->payload += s->at - before;
  }
}
