#include "core/os/address.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static void tells_what_is_possible(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, 5 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(pages != MAP_FAILED);
  CHECK(xt_address_access(pages, 5 * page) == XT_ACCESS_WRITE && xt_address_access(pages + 1, 1) == XT_ACCESS_WRITE);
  CHECK(xt_address_access(NULL, 0) == XT_ACCESS_WRITE);
  CHECK(!mprotect(pages + 2 * page, page, PROT_READ)); /* a read-only page in the middle */
  CHECK(xt_address_access(pages, 5 * page) == XT_ACCESS_READ);
  CHECK(xt_address_access(pages, 2 * page) == XT_ACCESS_WRITE &&
        xt_address_access(pages, 2 * page + 1) == XT_ACCESS_READ);
  CHECK(xt_address_access(pages + 3 * page, 2 * page) == XT_ACCESS_WRITE);
  CHECK(!mprotect(pages + 2 * page, page, PROT_NONE)); /* a page that cannot be read */
  CHECK(xt_address_access(pages, 5 * page) == XT_ACCESS_NONE && xt_address_access(pages, 2 * page) == XT_ACCESS_WRITE);
  CHECK(xt_address_access(pages + 2 * page, 1) == XT_ACCESS_NONE);
  CHECK(!munmap(pages + 2 * page, page)); /* a hole */
  CHECK(xt_address_access(pages, 5 * page) == XT_ACCESS_NONE &&
        xt_address_access(pages, 2 * page + 1) == XT_ACCESS_NONE);
  CHECK(xt_address_access(NULL, 1) == XT_ACCESS_NONE);
  CHECK(xt_address_access((void *)(UINTPTR_MAX - 3), 100) == XT_ACCESS_NONE);
  CHECK(xt_address_access((void *)(UINTPTR_MAX - 3), 4) == XT_ACCESS_NONE);
  munmap(pages, 2 * page);
  munmap(pages + 3 * page, 2 * page);
}

int main(void) { return RUN_TESTS("address", tells_what_is_possible); }
