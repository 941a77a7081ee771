/* What a file is, by its first bytes: the strongest framing first, and never a second guess. */
#ifndef XT_FORMATS_DETECT_H
#define XT_FORMATS_DETECT_H

#include "core/checkpoint/checkpoint.h"

enum { XT_DETECT_SIZE = 1024 };

/* The format; or an error that says what was found and what to do. */
xt_status xt_detect(const uint8_t *head, size_t size, const xt_format **format, xt_error *error);

#endif
