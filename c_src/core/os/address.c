#include "core/os/address.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

/* Reads one byte through the kernel. Where a sandbox forbids the call, the address counts as readable. */
static bool byte_readable(uintptr_t address) {
  char byte;
  struct iovec local = {&byte, 1}, remote = {(void *)address, 1};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1 || errno == EPERM || errno == ENOSYS;
}

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
