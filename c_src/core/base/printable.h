/* Bytes from a file, made safe to show in an error message. */
#ifndef XT_BASE_PRINTABLE_H
#define XT_BASE_PRINTABLE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { XT_PRINTABLE_MAX = 200 };

typedef struct {
  char text[XT_PRINTABLE_MAX + 4]; /* NUL-terminated UTF-8 */
} xt_printable;

/* Returns the text with control characters and bytes that are not valid UTF-8 escaped as \xHH. A result of more than
 * XT_PRINTABLE_MAX bytes is cut and ends in "...". */
xt_printable xt_printable_text(const char *data, size_t size);

#ifdef __cplusplus
}
#endif

#endif
