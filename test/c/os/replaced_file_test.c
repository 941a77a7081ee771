#include "core/os/replaced_file.h"

#include <string.h>

#include "check.h"
#include "faults.h"

enum { LARGE = 16 << 20 };

static char directory[4096];
static int parent;

static void make_file(const char *name, off_t size) {
  int fd = openat(parent, name, O_RDWR | O_CREAT | O_TRUNC, 0600);
  CHECK(fd >= 0 && !ftruncate(fd, size));
  close(fd);
}

/* Returns how many files were closed, after waiting for them. */
static unsigned settle(unsigned before) {
  unsigned count = before;
  bool any = xt_replaced_file_wait(&count);
  CHECK(any == (count != before) && count == xt_replaced_file_closed());
  return count - before;
}

static void holds_large_files(void) {
  unsigned before = xt_replaced_file_closed();
  make_file("small", LARGE - 1);
  make_file("large", LARGE);
  CHECK(!symlinkat("large", parent, "link"));
  CHECK(xt_replaced_file_hold(parent, "none") < 0 && xt_replaced_file_hold(parent, "small") < 0);
  CHECK(xt_replaced_file_hold(parent, "link") < 0 && xt_replaced_file_hold(parent, ".") < 0);
  int fd = xt_replaced_file_hold(parent, "large");
  CHECK(fd >= 0);
  xt_replaced_file_release(fd);
  xt_replaced_file_release(-1);
  CHECK(settle(before) == 1 && fcntl(fd, F_GETFD) < 0 && settle(before + 1) == 0);
}

/* The file is there until it is released. */
static void replaced_files_keep_their_blocks(void) {
  struct stat file;
  make_file("large", LARGE);
  int fd = xt_replaced_file_hold(parent, "large");
  CHECK(!unlinkat(parent, "large", 0) && !fstat(fd, &file) && file.st_nlink == 0);
  unsigned before = xt_replaced_file_closed();
  xt_replaced_file_release(fd);
  CHECK(settle(before) == 1 && fcntl(fd, F_GETFD) < 0);
}

/* Without another thread the caller closes the file. */
static void closes_files_without_a_thread(void) {
  make_file("large", LARGE);
  int fd = xt_replaced_file_hold(parent, "large");
  unsigned before = xt_replaced_file_closed();
  fault_at = 0, fault_calls = 0, fault_errno = EAGAIN;
  xt_replaced_file_release(fd);
  fault_at = -1;
  CHECK(fcntl(fd, F_GETFD) < 0 && xt_replaced_file_closed() == before + 1);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  snprintf(directory, sizeof directory, "%.4000s/replaced_file_test", argv[1]);
  mkdir(directory, 0700);
  parent = open(directory, O_RDONLY | O_DIRECTORY);
  CHECK(parent >= 0);
  int status =
      RUN_TESTS("replaced_file", holds_large_files, replaced_files_keep_their_blocks, closes_files_without_a_thread);
  const char *const names[] = {"small", "large", "link"};
  for (size_t i = 0; i < COUNT_OF(names); i++) unlinkat(parent, names[i], 0);
  close(parent);
  rmdir(directory);
  return status;
}
