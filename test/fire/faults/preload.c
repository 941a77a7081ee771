/* Makes calls of extorch.so fail. Preloaded into a VM: calls from other libraries are passed on.
 *
 * EXTORCH_FAULTS names a file of six 64-bit numbers that the VM's code reads and writes:
 *   fail_at   the number of the call that fails, from 1 on; 0: none
 *   repeat    how many calls fail from then on
 *   classes   the classes of calls that are counted (bits, see below)
 *   error     the errno of the failure
 *   calls     the number of calls so far
 *   failed    the number of calls that failed */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MEMORY = 1, READ = 2, WRITE = 4, SYNC = 8, RENAME = 16, MAP = 32, THREAD = 64, OPEN = 128 };

static struct control { atomic_int_least64_t fail_at, repeat, classes, error, calls, failed; } idle, *control = &idle;
static atomic_uintptr_t first, last; /* the addresses of extorch.so */

static int find_library(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size, (void)unused;
  size_t length = strlen(info->dlpi_name);
  if (length < 11 || strcmp(info->dlpi_name + length - 11, "/extorch.so")) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
      uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
      atomic_store(&last, start + info->dlpi_phdr[i].p_memsz);
      atomic_store(&first, start);
    }
  return 1;
}

/* The library is looked for when a fault is requested, not in each call: malloc is called very often. */
static bool from_extorch(uintptr_t caller) {
  if (!atomic_load(&first)) {
    static atomic_bool busy;
    if (atomic_exchange(&busy, true)) return false; /* dl_iterate_phdr may allocate */
    dl_iterate_phdr(find_library, NULL);
    atomic_store(&busy, false);
  }
  return caller >= atomic_load(&first) && caller < atomic_load(&last);
}

static bool fails(int class, void *caller) {
  if (!(atomic_load(&control->classes) & class) || !from_extorch((uintptr_t)caller)) return false;
  int64_t number = atomic_fetch_add(&control->calls, 1) + 1, at = atomic_load(&control->fail_at);
  if (!at || number < at || number >= at + atomic_load(&control->repeat)) return false;
  atomic_fetch_add(&control->failed, 1);
  errno = (int)atomic_load(&control->error);
  return true;
}

#define FAILS(class) fails(class, __builtin_return_address(0))
#define REAL(name) ((__typeof__(&name))real(#name, &real_##name))
static void *real(const char *name, void *_Atomic *cached) {
  if (!*cached) *cached = dlsym(RTLD_NEXT, name);
  return *cached;
}

/* glibc's own names of the allocator: dlsym itself allocates. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) { return FAILS(MEMORY) ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return FAILS(MEMORY) ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return FAILS(MEMORY) ? NULL : __libc_realloc(old, size); }
int posix_memalign(void **out, size_t alignment, size_t size) {
  if (FAILS(MEMORY)) return ENOMEM;
  *out = __libc_memalign(alignment, size);
  return *out ? 0 : ENOMEM;
}

#define WRAP(class, type, failure, name, parameters, arguments) \
  static void *_Atomic real_##name;                             \
  type name parameters { return FAILS(class) ? failure : REAL(name) arguments; }
WRAP(READ, ssize_t, -1, pread, (int fd, void *to, size_t size, off_t at), (fd, to, size, at))
WRAP(WRITE, ssize_t, -1, pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
WRAP(SYNC, int, -1, fsync, (int fd), (fd))
WRAP(RENAME, int, -1, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
WRAP(RENAME, int, -1, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
WRAP(OPEN, int, -1, fstat, (int fd, struct stat *out), (fd, out))
WRAP(OPEN, int, -1, fstatat, (int fd, const char *path, struct stat *out, int flags), (fd, path, out, flags))
WRAP(MAP, void *, MAP_FAILED, mmap, (void *at, size_t size, int protection, int flags, int fd, off_t offset),
     (at, size, protection, flags, fd, offset))
WRAP(THREAD, int, EAGAIN, pthread_create,
     (pthread_t * out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument),
     (out, attributes, run, argument))

static void *_Atomic real_open, *_Atomic real_openat;
int open(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  return FAILS(OPEN) ? -1 : REAL(open)(path, flags, mode);
}
int openat(int directory, const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  return FAILS(OPEN) ? -1 : REAL(openat)(directory, path, flags, mode);
}

__attribute__((constructor)) static void map_control(void) {
  const char *path = getenv("EXTORCH_FAULTS");
  int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *shared = mmap(NULL, sizeof idle, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (shared != MAP_FAILED) control = shared;
  close(fd);
}
