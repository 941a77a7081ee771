/* Decompresses the beginning of deflated data. libdeflate can only decompress all of it, but opening an npz file needs
 * the first bytes of each member. Slow and small; whole members are decompressed by libdeflate. */
#ifndef XT_FORMATS_INFLATE_PREFIX_H
#define XT_FORMATS_INFLATE_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes up to `room` bytes and sets *size to their number. It is less than `room` if the compressed data ends before,
 * or is cut off. Returns false if the data is invalid. */
bool xt_inflate_prefix(const uint8_t *packed, size_t packed_size, uint8_t *to, size_t room, size_t *size);

#endif
