#include "core/pickle/opcodes.h"

const xt_opcode_info xt_opcodes[256] = {
#define XT_OPCODE(name, byte, bytes, counted, lines, weights_only) \
  [byte] = {#name, bytes, counted, lines, weights_only},
#include "core/pickle/opcodes.def"
#undef XT_OPCODE
};
