/* Where a pickle ends, without making anything of it. */
#ifndef XT_SKIM_H
#define XT_SKIM_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
  XT_SKIM_END,   /* *at is behind the STOP */
  XT_SKIM_SHORT, /* the bytes end before the pickle does: *at is the last instruction, *wanted what it needs at least */
  XT_SKIM_BROKEN /* *at is no instruction */
} xt_skim_result;

enum { XT_SKIM_PAYLOAD = 4096 };

/* Goes on at *at, the start of the pickle or where the last call came up short. The length of instructions of
 * XT_SKIM_PAYLOAD bytes and more, which hold data and not structure, is added to *payload. */
xt_skim_result xt_skim(const uint8_t *data, size_t size, size_t *at, uint64_t *wanted, uint64_t *payload);

#endif
