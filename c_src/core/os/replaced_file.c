#include "core/os/replaced_file.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/os/clock.h"
#include "core/os/directory.h"
#include "core/os/exit_guard.h"
#include "core/os/thread.h"

enum { LARGE = 16 << 20, STEP_US = 1000, MAX_STEPS = 10000 };

static atomic_int released; /* files that are not closed yet */
static atomic_uint closed;

/* Without permission to read, too: O_PATH does not open the file itself. Not on file systems that are shared with other
 * hosts: NFS would give the file another name, which others see. */
int xt_replaced_file_hold(int directory, const char *name) {
#ifdef O_PATH
  struct stat file;
  if (xt_directory_shared(directory)) return -1;
  int fd = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 || (!fstat(fd, &file) && S_ISREG(file.st_mode) && file.st_size >= LARGE)) return fd;
  close(fd);
#else
  (void)directory, (void)name;
#endif
  return -1;
}

static void close_now(int fd) {
  close(fd);
  atomic_fetch_add(&closed, 1);
  atomic_fetch_sub(&released, 1);
}

static void *close_later(void *fd) {
  xt_thread_set_name("extorch_close");
  close_now((int)(intptr_t)fd);
  return NULL;
}

void xt_replaced_file_release(int fd) {
  if (fd < 0) return;
  atomic_fetch_add(&released, 1);
  if (!xt_thread_start(close_later, (void *)(intptr_t)fd)) close_now(fd);
}

unsigned xt_replaced_file_closed(void) { return atomic_load(&closed); }

bool xt_replaced_file_wait(unsigned *before) {
  for (int i = 0; i < MAX_STEPS && atomic_load(&released) && !xt_exit_guard_stopping(); i++) xt_clock_sleep_us(STEP_US);
  unsigned now = atomic_load(&closed);
  bool any = now != *before;
  *before = now;
  return any;
}
