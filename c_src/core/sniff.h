/* What a file is, by its first bytes: the strongest framing first. */
#ifndef XT_SNIFF_H
#define XT_SNIFF_H

#include <stddef.h>

#include "error.h"

enum { XT_SNIFF_SIZE = 512 };

/* ok: a zip. Everything else is an error that says what was found and what to do. */
xt_status xt_sniff(const uint8_t *head, size_t size, xt_error *error);

#endif
