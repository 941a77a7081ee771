/* CRC-32 of data that is checked in parts. */
#ifndef XT_CHECKPOINT_CRC_H
#define XT_CHECKPOINT_CRC_H

#include <stdint.h>

/* Returns what a part contributes to the CRC of the whole: its own CRC, shifted by the number of bytes that follow it.
 * The CRC of the whole is the XOR of what all parts contribute, in any order. */
uint32_t xt_crc_shift(uint32_t crc, uint64_t following);

#endif
