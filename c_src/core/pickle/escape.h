/* Decoding of the escapes in the text lines of pickle protocol 0. */
#ifndef XT_PICKLE_ESCAPE_H
#define XT_PICKLE_ESCAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the text between the quotes of a STRING line to bytes. Escapes are those of Python:
 * \n and other single letters, \ooo and \xHH; an unknown one stands for itself, with its backslash. `to` must have
 * space for `size` bytes. Returns false if an escape is invalid. */
bool xt_escape_string(const char *line, size_t size, char *to, size_t *length);

/* Decodes a UNICODE line to UTF-8. The escapes are \uXXXX and \UXXXXXXXX after an odd number of backslashes; all
 * other bytes are Latin-1, so bytes above 127 become two bytes. `to` must have space for 2 × `size` bytes. Returns
 * false if an escape is invalid. */
bool xt_escape_unicode(const char *line, size_t size, char *to, size_t *length);

#endif
