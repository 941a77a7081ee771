/* The memory of devices that tensors hold: counters and budgets, one of each for every device. */
#ifndef XT_MEMORY_DEVICE_MEMORY_H
#define XT_MEMORY_DEVICE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/device.h"

/* Counts memory of a device. Returns false, without counting it, if the budget of the device would be exceeded. */
bool xt_device_memory_charge(xt_device device, int64_t bytes);
void xt_device_memory_discharge(xt_device device, int64_t bytes);

int64_t xt_device_memory_live(xt_device device);
int64_t xt_device_memory_total(void); /* of all devices */

/* INT64_MAX means unlimited, which is the default. */
int64_t xt_device_memory_budget(xt_device device);
void xt_device_memory_set_budget(xt_device device, int64_t bytes);
void xt_device_memory_set_budgets(int64_t bytes); /* of all devices */

#endif
