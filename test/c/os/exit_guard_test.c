#include "core/os/exit_guard.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void calls_enter_and_leave(void) {
  CHECK(!xt_exit_guard_stopping());
  CHECK(xt_exit_guard_enter());
  xt_exit_guard_leave();
}

/* The exit handler runs when this program ends, and must not keep it from exiting. */
static void a_load_registers_the_handler(void) {
  for (int i = 0; i < 2; i++) {
    CHECK(xt_exit_guard_begin_load());
    CHECK(xt_exit_guard_enter());
    xt_exit_guard_leave();
    xt_exit_guard_end_load();
  }
}

/* A destructor that is registered during a load must not run. */
static void fail_at_exit(void) { _exit(1); }

static void an_exit_during_a_load_ends_the_process_at_once(void) {
  pid_t child = fork();
  int status;
  if (!child) {
    CHECK(xt_exit_guard_begin_load());
    atexit(fail_at_exit);
    usleep(100000); /* until the next handler is registered */
    exit(7);
  }
  CHECK(waitpid(child, &status, 0) == child);
#ifdef __GLIBC__
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
#endif
}

static void no_call_begins_after_a_halt(void) {
  pid_t child = fork();
  int status;
  if (!child) {
    xt_exit_guard_halt();
    _exit(xt_exit_guard_stopping() && !xt_exit_guard_enter() && !xt_exit_guard_begin_load() ? 0 : 1);
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
  return RUN_TESTS("exit_guard", calls_enter_and_leave, an_exit_during_a_load_ends_the_process_at_once,
                   no_call_begins_after_a_halt, a_load_registers_the_handler);
}
