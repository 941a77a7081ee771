#include "core/base/error.h"

#include <stdarg.h>
#include <stdio.h>

static void set(xt_error *error, xt_status status, int64_t offset, const char *format, va_list args) {
  error->status = status;
  error->offset = offset;
  error->collect = false;
  vsnprintf(error->message, sizeof error->message, format, args);
}

xt_status xt_error_set(xt_error *error, xt_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  set(error, status, -1, format, args);
  va_end(args);
  return status;
}

xt_status xt_error_at(xt_error *error, xt_status status, int64_t offset, const char *format, ...) {
  va_list args;
  va_start(args, format);
  set(error, status, offset, format, args);
  va_end(args);
  return status;
}

xt_status xt_error_budget(xt_error *error) {
  xt_error_set(error, XT_STATUS_limit,
               "the native memory budget is exceeded; release tensors or raise `config :extorch, budget:`");
  error->collect = true;
  return error->status;
}

const char *xt_status_name(xt_status status) {
#define XT_STATUS_NAME(name) #name,
  static const char *const names[] = {XT_STATUSES(XT_STATUS_NAME)};
#undef XT_STATUS_NAME
  return (unsigned)status < XT_STATUS_COUNT ? names[status] : "unknown";
}
