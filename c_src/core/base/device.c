#include "core/base/device.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {
#define XT_DEVICE_TEXT(name, text) text,
    XT_DEVICES(XT_DEVICE_TEXT)
#undef XT_DEVICE_TEXT
};

static _Atomic(const char *) private_name;

void xt_device_set_private_name(const char *name) { atomic_store(&private_name, name); }

const char *xt_device_type_name(xt_device_type type) {
  const char *renamed = type == XT_DEVICE_PRIVATE ? atomic_load(&private_name) : NULL;
  if (renamed) return renamed;
  return type < XT_DEVICE_OTHER ? names[type] : "other";
}

xt_device_type xt_device_type_from_name(const char *name) {
  const char *renamed = atomic_load(&private_name);
  if (renamed && !strcmp(renamed, name)) return XT_DEVICE_PRIVATE;
  xt_device_type type = 0;
  while (type < XT_DEVICE_OTHER && strcmp(names[type], name) != 0) type++;
  return type;
}

void xt_device_location(xt_device device, char *out, size_t size) {
  bool single = device.type == XT_DEVICE_CPU || device.type == XT_DEVICE_MPS || device.type == XT_DEVICE_META;
  if (single) snprintf(out, size, "%s", xt_device_type_name(device.type));
  else snprintf(out, size, "%s:%d", xt_device_type_name(device.type), device.index < 0 ? 0 : device.index);
}
