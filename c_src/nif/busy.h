/* The busy guard of objects that only one call at a time may use. A second call gets an error; it does not wait. Zeroed
 * memory is a guard that nobody has entered. */
#ifndef XT_NIF_BUSY_H
#define XT_NIF_BUSY_H

#include <stdatomic.h>

#include "core/base/error.h"

typedef struct {
  atomic_bool entered;
} xt_busy;

/* Fails with `:busy` if another call has entered. `use` completes the message: "using this saver". */
static inline xt_status xt_busy_enter(xt_busy *busy, const char *use, xt_error *error) {
  if (!atomic_exchange(&busy->entered, true)) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_busy, "another process is %s", use);
}

static inline void xt_busy_leave(xt_busy *busy) { atomic_store(&busy->entered, false); }

#endif
