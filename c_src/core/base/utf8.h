#ifndef XT_BASE_UTF8_H
#define XT_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

typedef enum { XT_UTF8_VALID, XT_UTF8_SURROGATES, XT_UTF8_INVALID } xt_utf8;

/* Valid UTF-8; or valid but for lone surrogates, which Python writes as if they were characters; or neither. */
xt_utf8 xt_utf8_check(const uint8_t *text, size_t size);

#endif
