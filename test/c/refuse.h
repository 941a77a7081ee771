/* Files that must be refused: each is opened as a file and as a stream, and the errors are compared with the expected
 * ones. A test prints all differences and then checks that there were none. */
#ifndef XT_TEST_REFUSE_H
#define XT_TEST_REFUSE_H

#include "sample.h"

static int wrong;

static inline void expect(const char *what, xt_status status, const xt_error *error, xt_status expected,
                          const char *message) {
  if (status == expected && (status == XT_STATUS_ok || strstr(error->message, message))) return;
  fprintf(stderr, "%s: expected %d \"%s\", got %d \"%s\"\n", what, (int)expected, message, (int)status, error->message);
  wrong++;
}

/* Opens the bytes as a file, and unless `file_only` is set also as a stream. */
static inline void refuse_with(const char *what, const void *data, size_t size, const xt_limits *limits,
                               xt_status status, const char *message, bool file_only) {
  sample s;
  xt_error error;
  xt_batch_load load;
  /* A copy of exactly this size, so that the sanitizer reports a read past its end. */
  uint8_t *exact = malloc(size ? size : 1);
  memcpy(exact, data, size);
  xt_status got = sample_open_with(&s, exact, size, limits, false, 0);
  if (got == XT_STATUS_ok && sample_load(&s, &load) == XT_STATUS_ok) xt_batch_load_free(&load);
  expect(what, s.status, &s.error, status, message);
  sample_free(&s);
  for (int pieces = 0; !file_only && pieces < 2; pieces++) { /* whole, and in small pieces */
    got = sample_push(exact, size, pieces ? 7 : size, limits, 1 << 20, true, &error);
    expect("the same as a stream", got, &error, status, message);
  }
  free(exact);
}

static inline void refuse(const char *what, const void *data, size_t size, xt_status status, const char *message) {
  refuse_with(what, data, size, &sample_limits, status, message, false);
}

#endif
