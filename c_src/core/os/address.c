#include "core/os/address.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __APPLE__

#include <mach/mach.h>

static bool byte_readable(uintptr_t address) {
  char byte = 0;
  vm_size_t size = 1;
  return vm_read_overwrite(mach_task_self(), address, size, (vm_address_t)&byte, &size) == KERN_SUCCESS;
}

#else

#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>

/* Writes the byte to a pipe, which fails with EFAULT if it cannot be read. */
static bool pipe_accepts(uintptr_t address) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) return true; /* no descriptor left: the answer is not known */
  bool readable = write(ends[1], (const void *)address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

/* Reads one byte through the kernel. Sandboxes and emulators may not have the call. */
static bool byte_readable(uintptr_t address) {
  char byte;
  struct iovec local = {&byte, 1}, remote = {(void *)address, 1};
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1) return true;
  return (errno == EPERM || errno == ENOSYS) && pipe_accepts(address);
}

#endif

bool xt_address_readable(const void *data, size_t size) {
  uintptr_t start = (uintptr_t)data, last;
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  if (!size) return true;
  if (!start || __builtin_add_overflow(start, size - 1, &last)) return false;
  /* msync walks the mappings without touching a page. It fails on unmapped pages but accepts PROT_NONE, so the first
   * and the last byte are read as well. */
  uintptr_t base = start & ~(page - 1);
  if (msync((void *)base, last - base + 1, MS_ASYNC)) return false;
  return byte_readable(start) && byte_readable(last);
}
