#include "core/os/exit_guard.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/os/clock.h"
#include "core/os/libraries.h"
#include "core/os/thread.h"

enum { TIMEOUT_MS = 2000 };

static atomic_int inside;
static atomic_bool stopping;
static _Atomic(bool (*)(int timeout_ms)) halt_thread;
static atomic_bool loading;     /* between xt_exit_guard_begin_load and end_load */
static atomic_bool registering; /* the thread that registers handlers is running */

bool xt_exit_guard_enter(void) {
  atomic_fetch_add(&inside, 1);
  if (!atomic_load(&stopping)) return true;
  atomic_fetch_sub(&inside, 1);
  return false;
}

void xt_exit_guard_leave(void) { atomic_fetch_sub(&inside, 1); }

bool xt_exit_guard_stopping(void) { return atomic_load(&stopping); }

void xt_exit_guard_at_halt(bool (*halt)(int timeout_ms)) { atomic_store(&halt_thread, halt); }

/* Waits for the calls inside and stops the registered thread. Returns false if that takes too long. */
static bool stop(void) {
  bool (*halt)(int timeout_ms) = atomic_load(&halt_thread);
  atomic_store(&stopping, true);
  for (int ms = 0; ms < TIMEOUT_MS && atomic_load(&inside) > 0; ms++) xt_clock_sleep_us(1000);
  return (!halt || halt(TIMEOUT_MS)) && atomic_load(&inside) == 0;
}

void xt_exit_guard_halt(void) { stop(); }

/* Destructors of LibTorch must not run while its constructors do, so a load is not waited for: the handlers of other
 * libraries are less important. */
#ifdef __GLIBC__ /* has on_exit */
static void at_exit(int status, void *unused) {
  (void)unused;
  if (atomic_load(&loading) || !stop()) _exit(status);
}
static void register_handler(void) { on_exit(at_exit, NULL); }
#else
/* The exit status is not known here. */
static void at_exit(void) {
  if (!stop()) _exit(EXIT_SUCCESS);
}
static void register_handler(void) { atexit(at_exit); }
#endif

/* Handlers run in the reverse order of their registration, and LibTorch's constructors register many. So that one of
 * these is always among the newest, another one is registered every millisecond. */
static void *register_again(void *unused) {
  (void)unused;
  while (atomic_load(&loading)) {
    register_handler();
    xt_clock_sleep_us(1000);
  }
  atomic_store(&registering, false);
  return NULL;
}

bool xt_exit_guard_begin_load(void) {
  xt_libraries_pin(&inside); /* the handler must not be unloaded */
  if (!xt_exit_guard_enter()) return false;
  register_handler();
  atomic_store(&loading, true);
  atomic_store(&registering, true);
  if (!xt_thread_start(register_again, NULL)) atomic_store(&registering, false);
  return true;
}

void xt_exit_guard_end_load(void) {
  register_handler(); /* runs before all handlers of LibTorch */
  atomic_store(&loading, false);
  while (atomic_load(&registering)) xt_clock_sleep_us(100);
  xt_exit_guard_leave();
}
