/* Pickle opcodes and their arguments, generated from opcodes.def. */
#ifndef XT_PICKLE_OPCODES_H
#define XT_PICKLE_OPCODES_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
#define XT_OPCODE(name, byte, bytes, counted, lines, weights_only) XT_OP_##name = byte,
#include "core/pickle/opcodes.def"
#undef XT_OPCODE
} xt_opcode;

typedef struct {
  const char *name; /* NULL if the byte is not an opcode */
  uint8_t bytes, counted, lines;
  bool weights_only;
} xt_opcode_info;

/* Indexed by the opcode's byte. */
extern const xt_opcode_info xt_opcodes[256];

#endif
