#include "core/base/layout.h"

#include <string.h>

#define XT_LAYOUT_NAME(name, number, text) [number] = text,
static const char *const layouts[] = {XT_LAYOUTS(XT_LAYOUT_NAME)};
#undef XT_LAYOUT_NAME
enum { LAYOUT_COUNT = sizeof layouts / sizeof *layouts };

const char *xt_layout_name(int layout) { return layout >= 0 && layout < LAYOUT_COUNT ? layouts[layout] : NULL; }

bool xt_layout_from_name(const char *name, size_t size, xt_layout *out) {
  for (int i = 0; i < LAYOUT_COUNT; i++)
    if (layouts[i] && strlen(layouts[i]) == size && !memcmp(layouts[i], name, size)) return *out = (xt_layout)i, true;
  return false;
}
