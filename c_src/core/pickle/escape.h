/* The escapes in protocol 0's lines of text. */
#ifndef XT_PICKLE_ESCAPE_H
#define XT_PICKLE_ESCAPE_H

#include <stdbool.h>
#include <stddef.h>

/* A string's line between its quotes (\n, \t, \r, \xHH, \anything), to bytes. `to` has room for `size` bytes. */
bool xt_escape_string(const char *line, size_t size, char *to, size_t *length);

/* A unicode line (\uXXXX; other bytes are Latin-1 and take two when they are above 127), to UTF-8. `to` has room for
 * 2 × `size` bytes. */
bool xt_escape_unicode(const char *line, size_t size, char *to, size_t *length);

#endif
