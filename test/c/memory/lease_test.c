#include "core/memory/lease.h"

#include "check.h"
#include "failing.h"

static char object_1, object_2;

static bool is(void *object, void *wanted) { return object == wanted; }

static bool count(void *object, void *context) {
  (void)object;
  ++*(int *)context;
  return false;
}

static int leases(void) {
  int found = 0;
  CHECK(!xt_lease_find(count, &found));
  return found;
}

static void keeps_objects_until_they_are_released(void) {
  CHECK(!xt_lease_release(is, &object_1) && leases() == 0);
  CHECK(xt_lease_keep(&object_1) && xt_lease_keep(&object_2) && leases() == 2);
  CHECK(xt_lease_find(is, &object_1) == &object_1 && leases() == 2);
  CHECK(xt_lease_release(is, &object_1) == &object_1 && !xt_lease_release(is, &object_1));
  CHECK(!xt_lease_find(is, &object_1) && leases() == 1);
  CHECK(xt_lease_release(is, &object_2) == &object_2 && leases() == 0);
}

static void keeps_an_object_several_times(void) {
  CHECK(xt_lease_keep(&object_1) && xt_lease_keep(&object_1));
  CHECK(xt_lease_release(is, &object_1) && xt_lease_release(is, &object_1) && !xt_lease_release(is, &object_1));
}

static void reports_that_there_is_no_memory(void) {
  allocations = 0, fail_at = 0;
  CHECK(!xt_lease_keep(&object_1));
  fail_at = -1;
  CHECK(leases() == 0);
}

int main(void) {
  return RUN_TESTS("lease", keeps_objects_until_they_are_released, keeps_an_object_several_times,
                   reports_that_there_is_no_memory);
}
