/* Errors: a status for programs, a byte offset, and a message for people. */
#ifndef XT_BASE_ERROR_H
#define XT_BASE_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The list of statuses. Each is a `reason` atom of ExTorch.Error, where they are documented. */
#define XT_STATUSES(X) \
  X(ok)                \
  X(truncated)         \
  X(corrupt)           \
  X(limit)             \
  X(forbidden)         \
  X(unsupported)       \
  X(io)                \
  X(file_changed)      \
  X(not_found)         \
  X(released)          \
  X(frozen)            \
  X(stale)             \
  X(busy)              \
  X(ambiguous)         \
  X(bad_argument)      \
  X(no_memory)         \
  X(stopping)          \
  X(timeout)           \
  X(closed)            \
  X(not_loaded)        \
  X(torch)

#define XT_STATUS_ENUM(name) XT_STATUS_##name,
typedef enum { XT_STATUSES(XT_STATUS_ENUM) XT_STATUS_COUNT } xt_status;
#undef XT_STATUS_ENUM

enum { XT_ERROR_TEXT = 1024 };

typedef struct {
  xt_status status;
  int64_t offset; /* byte offset in the input; -1 if unknown */
  bool collect;   /* the memory budget is exhausted; the call may succeed after a garbage collection */
  char message[XT_ERROR_TEXT];
} xt_error;

/* Both fill *error and return the status, so that a function can fail with `return xt_error_set(…)`. */
xt_status xt_error_set(xt_error *error, xt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
xt_status xt_error_at(xt_error *error, xt_status status, int64_t offset, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Sets the error of an allocation that the budget does not permit. The caller may collect garbage and try again. */
xt_status xt_error_budget(xt_error *error);

const char *xt_status_name(xt_status status);

#ifdef __cplusplus
}
#endif

#endif
