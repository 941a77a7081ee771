/* The safetensors format.
 *
 *   1. Size of the header as u64, little-endian, at most 100,000,000
 *   2. Header: a JSON object, which begins with '{' and may be padded with spaces at the end. It contains
 *      a. for each tensor, its name and {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}. The offsets
 *         count from the end of the header.
 *      b. optionally "__metadata__" and an object whose values are strings
 *   3. The data of the tensors, little-endian and row-major, without gaps or overlaps, up to the end of the file
 *
 * The sizes of a shape count elements, also for the dtypes with less than 8 bits (F4, F6_E2M3, F6_E3M2).
 */
#ifndef XT_FORMATS_SAFETENSORS_H
#define XT_FORMATS_SAFETENSORS_H

#include "core/checkpoint/format.h"
#include "core/checkpoint/saver.h"

extern const xt_format xt_safetensors_format;
extern const xt_push_parser xt_safetensors_push;
extern const xt_format_writer xt_safetensors_write;

/* ---- Parts of the file, for the opener and the push parser ---- */

enum { XT_SAFETENSORS_PREFIX = 8 /* size of the header's size */, XT_SAFETENSORS_MAX_HEADER = 100000000 };

xt_status xt_safetensors_header_size(const xt_checkpoint *c, const uint8_t *prefix, uint64_t *size, xt_error *error);

/* Reads the header, which must stay allocated as long as the checkpoint. */
xt_status xt_safetensors_read_header(xt_opening *o, const uint8_t *header, size_t size, xt_error *error);

#endif
