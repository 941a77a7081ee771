/* Files that are not checkpoints, mostly because a download went wrong. */
#ifndef XT_FORMATS_OTHER_FILE_H
#define XT_FORMATS_OTHER_FILE_H

#include <stddef.h>

#include "core/base/error.h"

/* Returns whether the bytes are text in UTF-8. Also true for text whose last character is cut off. */
bool xt_other_file_is_text(const uint8_t *head, size_t size);

/* Describes a file that is text, and what to do about it. Returns XT_STATUS_ok if it is something else. */
xt_status xt_other_file_report(const uint8_t *head, size_t size, xt_error *error);

#endif
