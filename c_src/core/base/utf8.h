#ifndef XT_BASE_UTF8_H
#define XT_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

typedef enum { XT_UTF8_VALID, XT_UTF8_SURROGATES, XT_UTF8_INVALID } xt_utf8;

/* Checks whether text is valid UTF-8. XT_UTF8_SURROGATES: it would be valid but for encoded lone surrogates, which
 * Python's pickle writes as if they were characters. */
xt_utf8 xt_utf8_check(const uint8_t *text, size_t size);

#endif
