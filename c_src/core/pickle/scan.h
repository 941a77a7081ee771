/* Finds the end of a pickle without building its objects. */
#ifndef XT_PICKLE_SCAN_H
#define XT_PICKLE_SCAN_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
  XT_SCAN_END,    /* `at` is the first byte after STOP */
  XT_SCAN_SHORT,  /* the data ends before the pickle does; `at` is the incomplete opcode */
  XT_SCAN_INVALID /* the byte at `at` is not an opcode */
} xt_pickle_scan_result;

/* An opcode that declares more is said to need this many bytes: an offset can be added to it. */
#define XT_SCAN_MOST ((uint64_t)1 << 62)
enum { XT_SCAN_PAYLOAD = 4096 }; /* opcodes of at least this many bytes hold data rather than structure */

/* Position of the scan; zeroed at the start of a pickle. */
typedef struct {
  size_t at;
  int line;         /* number of complete text lines found of the opcode at `at` */
  size_t searched;  /* the next line does not end before this position */
  uint64_t wanted;  /* bytes that the opcode at `at` needs at least, up to XT_SCAN_MOST */
  uint64_t payload; /* total bytes of opcodes of XT_SCAN_PAYLOAD bytes and more */
} xt_pickle_scan_state;

/* Scans data from state->at. After XT_SCAN_SHORT it can be called again with more data. */
xt_pickle_scan_result xt_pickle_scan(const uint8_t *data, size_t size, xt_pickle_scan_state *state);

#endif
