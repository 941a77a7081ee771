#include "core/memory/device_memory.h"

#include "check.h"
#include "core/memory/memory.h"

static const xt_device first = {XT_DEVICE_CUDA, 0}, second = {XT_DEVICE_CUDA, 1}, unspecified = {XT_DEVICE_CUDA, -1};

static void each_device_is_counted(void) {
  xt_memory_taken();
  CHECK(xt_device_memory_charge(first, 100) && xt_device_memory_charge(second, 20));
  CHECK(xt_device_memory_live(first) == 100 && xt_device_memory_live(unspecified) == 100);
  CHECK(xt_device_memory_live(second) == 20 && xt_device_memory_total() == 120);
  CHECK(xt_memory_taken() == 120 && xt_memory_live.bytes == 0);
  xt_device_memory_discharge(first, 100);
  xt_device_memory_discharge(second, 20);
  CHECK(xt_device_memory_total() == 0);
}

static void each_device_has_a_budget(void) {
  CHECK(xt_device_memory_budget(first) == INT64_MAX);
  xt_device_memory_set_budget(first, 50);
  CHECK(xt_device_memory_budget(first) == 50 && xt_device_memory_budget(second) == INT64_MAX);
  CHECK(!xt_device_memory_charge(first, 51) && xt_device_memory_live(first) == 0 && xt_device_memory_total() == 0);
  CHECK(xt_device_memory_charge(first, 50) && !xt_device_memory_charge(first, 1));
  CHECK(xt_device_memory_charge(second, 51));
  xt_device_memory_discharge(first, 50);
  xt_device_memory_discharge(second, 51);
  xt_device_memory_set_budgets(7);
  CHECK(xt_device_memory_budget(second) == 7 && !xt_device_memory_charge(first, 8));
  xt_device_memory_set_budgets(INT64_MAX);
  CHECK(xt_device_memory_budget(first) == INT64_MAX);
}

int main(void) { return RUN_TESTS("device_memory", each_device_is_counted, each_device_has_a_budget); }
