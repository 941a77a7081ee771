#include "core/memory/lease.h"

#include "check.h"
#include "failing.h"

static char address_a, address_b, object_1, object_2;

static void keeps_objects_by_address(void) {
  CHECK(!xt_lease_release(&address_a));
  CHECK(xt_lease_keep(&address_a, &object_1) && xt_lease_keep(&address_b, &object_2));
  CHECK(xt_lease_release(&address_a) == &object_1 && !xt_lease_release(&address_a));
  CHECK(xt_lease_release(&address_b) == &object_2 && !xt_lease_release(&address_b));
}

static void keeps_several_leases_of_one_address(void) {
  CHECK(xt_lease_keep(&address_a, &object_1) && xt_lease_keep(&address_b, &object_1));
  CHECK(xt_lease_keep(&address_a, &object_2));
  void *first = xt_lease_release(&address_a), *second = xt_lease_release(&address_a);
  CHECK((first == &object_1 && second == &object_2) || (first == &object_2 && second == &object_1));
  CHECK(!xt_lease_release(&address_a) && xt_lease_release(&address_b) == &object_1);
}

static void reports_that_there_is_no_memory(void) {
  allocations = 0, fail_at = 0;
  CHECK(!xt_lease_keep(&address_a, &object_1));
  fail_at = -1;
  CHECK(!xt_lease_release(&address_a));
}

int main(void) {
  return RUN_TESTS("lease", keeps_objects_by_address, keeps_several_leases_of_one_address,
                   reports_that_there_is_no_memory);
}
