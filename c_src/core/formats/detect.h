/* Detects the format of a checkpoint from its first bytes. The order of the tests is fixed: a format with an
 * unambiguous signature is tested before one that is only guessed. */
#ifndef XT_FORMATS_DETECT_H
#define XT_FORMATS_DETECT_H

#include "core/checkpoint/checkpoint.h"

enum { XT_DETECT_SIZE = 1024 }; /* number of leading bytes that detection looks at */

/* Sets *format, or returns an error that describes the file and what to do about it. */
xt_status xt_detect(const uint8_t *head, size_t size, const xt_format **format, xt_error *error);

#endif
