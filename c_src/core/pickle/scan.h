/* Where a pickle ends, without making anything of it. */
#ifndef XT_PICKLE_SCAN_H
#define XT_PICKLE_SCAN_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
  XT_SCAN_END,    /* `at` is behind the STOP */
  XT_SCAN_SHORT,  /* the bytes end before the pickle does: `at` is the last instruction */
  XT_SCAN_INVALID /* `at` is no instruction */
} xt_pickle_scan_result;

enum { XT_SCAN_PAYLOAD = 4096 };

/* How far it has come: zeroed at the start of a pickle. */
typedef struct {
  size_t at;
  int line;         /* so many lines of the instruction at hand were found, */
  size_t searched;  /* and the next does not end before here */
  uint64_t wanted;  /* bytes that it needs at least */
  uint64_t payload; /* length of instructions of XT_SCAN_PAYLOAD bytes and more, which hold data and not structure */
} xt_pickle_scan_state;

/* Goes on where the last call came up short. */
xt_pickle_scan_result xt_pickle_scan(const uint8_t *data, size_t size, xt_pickle_scan_state *state);

#endif
