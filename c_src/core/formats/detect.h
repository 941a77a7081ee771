/* Detects the format of a checkpoint from its first bytes. detect.c has the one list of formats. Its order is fixed: a
 * format with an unambiguous signature is tested before one that is only guessed. */
#ifndef XT_FORMATS_DETECT_H
#define XT_FORMATS_DETECT_H

#include "core/checkpoint/format.h"

enum { XT_DETECT_SIZE = 1024 }; /* number of leading bytes that detection looks at */

/* Sets *format, or returns an error that describes the file and what to do about it. */
xt_status xt_detect(const uint8_t *head, size_t size, const xt_format **format, xt_error *error);

/* Returns the format of a stream that begins with these bytes, if it is recognized by its signature (xt_format). Else
 * returns NULL, and sets *needed to the number of bytes after which to try again, or to 0 if more do not help. */
const xt_format *xt_detect_signature(const uint8_t *head, size_t size, size_t *needed);

/* Returns whether no stream that begins with these bytes is recognized by its signature, whatever follows. */
bool xt_detect_no_signature(const uint8_t *head, size_t size);

/* Returns the format whose errors describe the file best, if it is in no format exactly. Returns NULL if there is none.
 */
const xt_format *xt_detect_guess(const uint8_t *head, size_t size);

#endif
