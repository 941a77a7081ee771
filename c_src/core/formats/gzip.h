/* gzip files (RFC 1952) that contain a checkpoint in any other format. They can be opened, but neither streamed nor
 * written.
 *
 *   1. Header: 1f 8b · method 08 · flags u8 · time u32 · extra flags u8 · system u8 · optional fields
 *   2. The deflated content
 *   3. CRC-32 u32 · size of the content modulo 4 GiB u32, little-endian
 *
 * Several such members may follow each other; their contents are concatenated.
 */
#ifndef XT_FORMATS_GZIP_H
#define XT_FORMATS_GZIP_H

#include "core/checkpoint/format.h"

extern const xt_format xt_gzip_format;

#endif
