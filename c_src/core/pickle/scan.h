/* Where a pickle ends, without making anything of it. */
#ifndef XT_PICKLE_SCAN_H
#define XT_PICKLE_SCAN_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
  XT_SKIM_END,   /* `at` is behind the STOP */
  XT_SKIM_SHORT, /* the bytes end before the pickle does: `at` is the last instruction */
  XT_SKIM_BROKEN /* `at` is no instruction */
} xt_skim_result;

enum { XT_SKIM_PAYLOAD = 4096 };

/* How far it has come: zeroed at the start of a pickle. */
typedef struct {
  size_t at;
  int line;         /* so many lines of the instruction at hand were found, */
  size_t searched;  /* and the next does not end before here */
  uint64_t wanted;  /* bytes that it needs at least */
  uint64_t payload; /* length of instructions of XT_SKIM_PAYLOAD bytes and more, which hold data and not structure */
} xt_skimmed;

/* Goes on where the last call came up short. */
xt_skim_result xt_skim(const uint8_t *data, size_t size, xt_skimmed *state);

#endif
