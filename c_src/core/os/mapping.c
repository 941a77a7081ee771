#include "core/os/mapping.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/os/thread.h"

enum { MAPS = 1024 };

/* A slot is free if `start` is 0, and is claimed by a compare and exchange of it. The handler takes no lock. */
static struct {
  atomic_uintptr_t start, end;
  atomic_bool poisoned;
} maps[MAPS];
static atomic_int poisoned_count;
static struct sigaction previous;
static uintptr_t page_size;

static void call_previous(int signal, siginfo_t *info, void *context) {
  if (previous.sa_flags & SA_SIGINFO) previous.sa_sigaction(signal, info, context);
  else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) previous.sa_handler(signal);
  else {
    sigaction(signal, &previous, NULL); /* the access is repeated and now has the default effect */
  }
}

/* macOS on ARM reports BUS_ADRALN for every SIGBUS. */
static bool is_missing_page(const siginfo_t *info) {
#ifdef __APPLE__
  return info->si_code == BUS_ADRERR || info->si_code == BUS_ADRALN;
#else
  return info->si_code == BUS_ADRERR;
#endif
}

static void on_sigbus(int signal, siginfo_t *info, void *context) {
  uintptr_t address = (uintptr_t)info->si_addr;
  int saved_errno = errno;
  for (int i = 0; i < MAPS && is_missing_page(info); i++) {
    uintptr_t start = atomic_load(&maps[i].start), end = atomic_load(&maps[i].end);
    if (!start || address < start || address >= end) continue;
    uintptr_t page = address & ~(page_size - 1);
    void *zeros =
        mmap((void *)page, end - page, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (zeros == MAP_FAILED) break;
    if (!atomic_exchange(&maps[i].poisoned, true)) atomic_fetch_add(&poisoned_count, 1);
    errno = saved_errno;
    return;
  }
  call_previous(signal, info, context);
}

static void install(void) {
  struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &previous);
}

static void remove_mapping(uintptr_t start) {
  for (int i = 0; i < MAPS; i++)
    if (atomic_load(&maps[i].start) == start) {
      if (atomic_exchange(&maps[i].poisoned, false)) atomic_fetch_sub(&poisoned_count, 1);
      atomic_store(&maps[i].end, 0);
      atomic_store(&maps[i].start, 0);
      return;
    }
}

/* Removes the table entry first: another mapping may get the address as soon as it is free. */
void xt_mapping_close(void *data, size_t size) {
  remove_mapping((uintptr_t)data);
  munmap(data, size);
}

static bool add_mapping(void *data, size_t size) {
  for (int i = 0; i < MAPS; i++) {
    uintptr_t free_slot = 0;
    if (!atomic_compare_exchange_strong(&maps[i].start, &free_slot, (uintptr_t)data)) continue;
    atomic_store(&maps[i].end, (uintptr_t)data + size);
    return true;
  }
  return false;
}

xt_status xt_mapping_open(const xt_file *file, void **data, xt_error *error) {
  static xt_once once = XT_ONCE_INIT;
  xt_once_run(&once, install);
  *data = mmap(NULL, file->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file->fd, 0);
  if (*data == MAP_FAILED)
    return xt_error_set(error, XT_STATUS_io, "the file could not be memory-mapped: %s", strerror(errno));
  if (add_mapping(*data, file->size)) return XT_STATUS_ok;
  munmap(*data, file->size);
  return xt_error_set(error, XT_STATUS_limit,
                      "too many memory-mapped files (the limit is %d); close some, or load without `mmap: true`", MAPS);
}

/* MADV_POPULATE_READ of Linux 5.14. Its headers may be older than the kernel. */
#ifdef __linux__
enum { POPULATE_READ = 22 };
static int populate(void *data, size_t size) { return madvise(data, size, POPULATE_READ); }
#else
static int populate(void *data, size_t size) {
  (void)data, (void)size;
  return errno = EINVAL, -1;
}
#endif

bool xt_mapping_populate(void *data, size_t size) {
  uintptr_t start = (uintptr_t)data & ~(page_size - 1);
  size += (uintptr_t)data - start;
  int result;
  while ((result = populate((void *)start, size)) && (errno == EINTR || errno == EAGAIN)) {
  }
  if (!result || errno != EINVAL) return !result;
  for (uintptr_t at = start; at < start + size; at += page_size) (void)*(volatile const char *)at;
  return !xt_mapping_poisoned((void *)start, size);
}

bool xt_mapping_poisoned(const void *data, size_t size) {
  uintptr_t start = (uintptr_t)data;
  if (!atomic_load(&poisoned_count)) return false;
  for (int i = 0; i < MAPS; i++)
    if (atomic_load(&maps[i].poisoned) && atomic_load(&maps[i].start) < start + size &&
        start < atomic_load(&maps[i].end))
      return true;
  return false;
}
