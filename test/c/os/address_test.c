#include "core/os/address.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static void tells_readable_ranges_from_others(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, 3 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(pages != MAP_FAILED);
  CHECK(xt_address_readable(pages, 3 * page) && xt_address_readable(pages + 1, 1) && xt_address_readable(NULL, 0));
  CHECK(!munmap(pages + page, page)); /* a hole in the middle */
  CHECK(!xt_address_readable(pages, 3 * page) && !xt_address_readable(pages, page + 1) &&
        xt_address_readable(pages, page));
  CHECK(!mprotect(pages, page, PROT_NONE) && !xt_address_readable(pages, 1));
  CHECK(!xt_address_readable(NULL, 1) && !xt_address_readable((void *)(UINTPTR_MAX - 3), 100));
  munmap(pages, page);
  munmap(pages + 2 * page, page);
}

int main(void) { return RUN_TESTS("address", tells_readable_ranges_from_others); }
