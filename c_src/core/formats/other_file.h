/* Files that are not checkpoints, mostly because a download went wrong. */
#ifndef XT_FORMATS_OTHER_FILE_H
#define XT_FORMATS_OTHER_FILE_H

#include <stddef.h>

#include "core/base/error.h"

/* Returns whether the bytes are text in UTF-8. Also true for text whose last character is cut off. */
bool xt_other_file_is_text(const uint8_t *head, size_t size);

/* Returns the length of the first line if it is one of HTTP ("HTTP/1.1 200 OK", "GET /a HTTP/1.1"), otherwise 0. */
size_t xt_other_file_http_line(const uint8_t *head, size_t size);

/* A TorchScript module for mobile in the format that is no zip file: whether more bytes may make these one, and the
 * error about one; XT_STATUS_ok for other files. */
bool xt_other_file_may_begin_flatbuffer(const uint8_t *head, size_t size);
xt_status xt_other_file_report_flatbuffer(const uint8_t *head, size_t size, xt_error *error);

/* Describes a file that is text, and what to do about it. Returns XT_STATUS_ok if it is something else. */
xt_status xt_other_file_report(const uint8_t *head, size_t size, xt_error *error);

#endif
