/* Failing system calls: a program that includes this header is linked with -Wl,--wrap for these functions
 * (scripts/c_tests.mk), and the call with the number `fault_at`, counted over all of them, fails with `fault_errno`.
 *
 * `no_unnamed_files` makes O_TMPFILE fail, as on some file systems.
 * `short_io` limits the bytes of each read and write, and `interrupts` makes that many of them fail with EINTR first.
 * fault_call is the name of the call that failed last. */
#ifndef XT_TEST_FAULTS_H
#define XT_TEST_FAULTS_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static long fault_at = -1, fault_calls;
static int fault_errno = EIO, interrupts;
static size_t short_io;
static bool no_unnamed_files;
static const char *fault_call;

static bool fault(const char *call) {
  if (__atomic_fetch_add(&fault_calls, 1, __ATOMIC_RELAXED) != fault_at) return false;
  fault_call = call;
  errno = fault_errno;
  return true;
}

static bool interrupted(void) {
  int left = __atomic_load_n(&interrupts, __ATOMIC_RELAXED);
  while (left > 0 &&
         !__atomic_compare_exchange_n(&interrupts, &left, left - 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    ;
  return left > 0 && (errno = EINTR);
}
static size_t shortened(size_t size) { return short_io && size > short_io ? short_io : size; }

ssize_t __real_pread(int fd, void *to, size_t size, off_t at);
ssize_t __real_pwrite(int fd, const void *from, size_t size, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t size, off_t at) {
  return fault("pread") || interrupted() ? -1 : __real_pread(fd, to, shortened(size), at);
}
ssize_t __wrap_pwrite(int fd, const void *from, size_t size, off_t at) {
  return fault("pwrite") || interrupted() ? -1 : __real_pwrite(fd, from, shortened(size), at);
}

/* Defines the wrapper of a function that returns 0 or -1. */
#define FAULTY(name, parameters, arguments) \
  int __real_##name parameters;             \
  int __wrap_##name parameters { return fault(#name) ? -1 : __real_##name arguments; }
FAULTY(fsync, (int fd), (fd))
FAULTY(fstat, (int fd, struct stat *out), (fd, out))
FAULTY(fstatat, (int fd, const char *path, struct stat *out, int flags), (fd, path, out, flags))
FAULTY(faccessat, (int fd, const char *path, int mode, int flags), (fd, path, mode, flags))
FAULTY(flock, (int fd, int operation), (fd, operation))
FAULTY(fchmod, (int fd, mode_t mode), (fd, mode))
FAULTY(renameat, (int from, const char *old, int to, const char *new_name), (from, old, to, new_name))
FAULTY(linkat, (int from, const char *old, int to, const char *new_name, int flags), (from, old, to, new_name, flags))

/* open and openat take a mode only if they create a file. */
int __real_open(const char *path, int flags, ...);
int __real_openat(int directory, const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) { return fault("open") ? -1 : __real_open(path, flags, 0666); }
int __wrap_openat(int directory, const char *path, int flags, ...) {
  if (no_unnamed_files && (flags & O_TMPFILE) == O_TMPFILE) return errno = EOPNOTSUPP, -1;
  return fault("openat") ? -1 : __real_openat(directory, path, flags, 0666);
}

void *__real_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
  return fault("mmap") ? MAP_FAILED : __real_mmap(at, size, protection, flags, fd, offset);
}

int __real_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
  return fault("pthread_create") ? EAGAIN : __real_pthread_create(out, attributes, run, argument);
}

ssize_t __real_getrandom(void *to, size_t size, unsigned flags);
ssize_t __wrap_getrandom(void *to, size_t size, unsigned flags) {
  return fault("getrandom") ? -1 : __real_getrandom(to, size, flags);
}

#endif
