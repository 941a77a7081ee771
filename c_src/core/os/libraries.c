#include "core/os/libraries.h"

#include <dlfcn.h>
#include <stddef.h>

void *xt_libraries_open(const char *path, const char **reason) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) *reason = dlerror();
  return library;
}

void *xt_libraries_symbol(void *library, const char *name) { return dlsym(library, name); }

#ifdef __APPLE__

#include <mach-o/dyld.h>
#include <stdint.h>

void xt_libraries_pin(const void *address) {
  Dl_info info;
  if (dladdr(address, &info)) dlopen(info.dli_fname, RTLD_NOW | RTLD_NODELETE);
}

void xt_libraries_each(void (*visit)(void *context, const char *path), void *context) {
  for (uint32_t i = 0; i < _dyld_image_count(); i++) {
    const char *path = _dyld_get_image_name(i);
    if (path) visit(context, path);
  }
}

#else

#include <link.h>

void xt_libraries_pin(const void *address) { (void)address; }

typedef struct {
  void (*visit)(void *context, const char *path);
  void *context;
} visitor;

static int visit_library(struct dl_phdr_info *info, size_t size, void *object) {
  const visitor *v = object;
  (void)size;
  v->visit(v->context, info->dlpi_name);
  return 0;
}

void xt_libraries_each(void (*visit)(void *context, const char *path), void *context) {
  visitor v = {visit, context};
  dl_iterate_phdr(visit_library, &v);
}

#endif
