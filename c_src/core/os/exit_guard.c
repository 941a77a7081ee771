#include "core/os/exit_guard.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/memory/reaper.h"
#include "core/os/clock.h"
#include "core/os/libraries.h"
#include "core/os/thread.h"

enum { TIMEOUT_MS = 2000 };

static atomic_int inside;
static atomic_bool stopping;

bool xt_exit_guard_enter(void) {
  atomic_fetch_add(&inside, 1);
  if (!atomic_load(&stopping)) return true;
  atomic_fetch_sub(&inside, 1);
  return false;
}

void xt_exit_guard_leave(void) { atomic_fetch_sub(&inside, 1); }

bool xt_exit_guard_stopping(void) { return atomic_load(&stopping); }

static void at_exit(int status) {
  atomic_store(&stopping, true);
  for (int ms = 0; ms < TIMEOUT_MS && atomic_load(&inside) > 0; ms++) xt_clock_sleep_us(1000);
  if (!xt_reaper_halt(TIMEOUT_MS) || atomic_load(&inside) > 0) _exit(status);
}

#ifdef __GLIBC__ /* has on_exit */
static void at_exit_with_status(int status, void *unused) {
  (void)unused;
  at_exit(status);
}
static void register_handler(void) { on_exit(at_exit_with_status, NULL); }
#else
/* The exit status is not known here. */
static void at_exit_without_status(void) { at_exit(EXIT_SUCCESS); }
static void register_handler(void) { atexit(at_exit_without_status); }
#endif

void xt_exit_guard_install(void) {
  static xt_once once = XT_ONCE_INIT;
  xt_libraries_pin(&inside); /* the handler must not be unloaded */
  xt_once_run(&once, register_handler);
}
