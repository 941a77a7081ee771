/* Failing allocations and reads: a program that includes this header is linked with -Wl,--wrap for the functions below
 * (scripts/c_tests.mk). The allocation with the number `fail_at` returns NULL, and the read with the number
 * `fail_read_at` fails with EIO. All reads are interrupted once and short if `short_reads` is set. */
#ifndef XT_TEST_FAILING_H
#define XT_TEST_FAILING_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

static long fail_at = -1, allocations;
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
static bool next_fails(void) { return allocations++ == fail_at; }
void *__wrap_malloc(size_t size) { return next_fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return next_fails() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *old, size_t size) { return next_fails() ? NULL : __real_realloc(old, size); }

static long fail_read_at = -1, reads;
static bool short_reads;
ssize_t __real_pread(int fd, void *to, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *to, size_t size, off_t offset) {
  static bool interrupted;
  if (reads++ == fail_read_at) return errno = EIO, -1;
  if (short_reads && (interrupted = !interrupted)) return errno = EINTR, -1;
  return __real_pread(fd, to, short_reads && size > 7 ? size / 7 : size, offset);
}

#endif
