#include "core/memory/device_memory.h"

#include <stdatomic.h>

#include "core/memory/memory.h"

/* `limited` is how much less than INT64_MAX the budget is, so that 0 is the default. */
typedef struct {
  atomic_int_least64_t live, limited;
} account;

static account accounts[XT_DEVICE_OTHER + 1][XT_MAX_DEVICES];
static atomic_int_least64_t total;

static account *account_of(xt_device device) {
  int index = device.index < 0 || device.index >= XT_MAX_DEVICES ? 0 : device.index;
  return &accounts[device.type <= XT_DEVICE_OTHER ? device.type : XT_DEVICE_OTHER][index];
}

int64_t xt_device_memory_live(xt_device device) { return atomic_load(&account_of(device)->live); }
int64_t xt_device_memory_total(void) { return atomic_load(&total); }
int64_t xt_device_memory_budget(xt_device device) { return INT64_MAX - atomic_load(&account_of(device)->limited); }

void xt_device_memory_set_budget(xt_device device, int64_t bytes) {
  atomic_store(&account_of(device)->limited, INT64_MAX - bytes);
}

void xt_device_memory_set_budgets(int64_t bytes) {
  for (int type = 0; type <= XT_DEVICE_OTHER; type++)
    for (int index = 0; index < XT_MAX_DEVICES; index++)
      xt_device_memory_set_budget((xt_device){(xt_device_type)type, index}, bytes);
}

bool xt_device_memory_charge(xt_device device, int64_t bytes) {
  atomic_fetch_add(&total, bytes);
  if (atomic_fetch_add(&account_of(device)->live, bytes) > xt_device_memory_budget(device) - bytes) {
    xt_device_memory_discharge(device, bytes);
    return false;
  }
  xt_memory_take(bytes);
  return true;
}

void xt_device_memory_discharge(xt_device device, int64_t bytes) {
  atomic_fetch_sub(&account_of(device)->live, bytes);
  atomic_fetch_sub(&total, bytes);
}
