/* Detects the format of a checkpoint from its first bytes. The order of the tests is fixed: a format with an
 * unambiguous signature is tested before one that is only guessed. */
#ifndef XT_FORMATS_DETECT_H
#define XT_FORMATS_DETECT_H

#include "core/checkpoint/checkpoint.h"

enum { XT_DETECT_SIZE = 1024 }; /* number of leading bytes that detection looks at */

/* Sets *format, or returns an error that describes the file and what to do about it. */
xt_status xt_detect(const uint8_t *head, size_t size, const xt_format **format, xt_error *error);

typedef enum { XT_DETECT_NO, XT_DETECT_YES, XT_DETECT_MORE } xt_detection;

/* Returns whether the bytes are those of a safetensors file: the length of a header, then a JSON object, which white
 * space may precede. XT_DETECT_MORE means that more bytes are needed to decide. */
xt_detection xt_detect_safetensors(const uint8_t *head, size_t size);

/* Returns whether a pickle may begin with this byte: PROTO, or the first opcode of protocol 0 or 1. */
bool xt_detect_may_be_pickle(uint8_t first);

#endif
