#include "core/os/exit_guard.h"

#include "check.h"

static void calls_enter_and_leave(void) {
  CHECK(!xt_exit_guard_stopping());
  CHECK(xt_exit_guard_enter());
  xt_exit_guard_leave();
}

/* The exit handler runs when this program ends, and must not keep it from exiting. */
static void the_handler_can_be_installed(void) {
  xt_exit_guard_install();
  CHECK(xt_exit_guard_enter());
  xt_exit_guard_leave();
}

int main(void) { return RUN_TESTS("exit_guard", calls_enter_and_leave, the_handler_can_be_installed); }
