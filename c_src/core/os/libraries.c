#include "core/os/libraries.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/os/file.h"

void *xt_libraries_open(const char *path, const char **reason) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) *reason = dlerror();
  return library;
}

void *xt_libraries_symbol(void *library, const char *name) { return dlsym(library, name); }

#ifdef __APPLE__

#include <mach-o/dyld.h>

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

/* ---- Comparison ---- */

/* The beginning of a library has its headers, its build id and its symbols: copies of a library are the only files of
 * the same size that begin alike. */
enum { COMPARED_BYTES = 1 << 20 };

static bool same_bytes(const xt_file *a, const xt_file *b) {
  size_t size = a->size < COMPARED_BYTES ? (size_t)a->size : COMPARED_BYTES;
  xt_error error;
  char *bytes = a->size == b->size ? malloc(2 * size + 1) : NULL;
  bool same = bytes && xt_file_read(a, 0, bytes, size, &error) == XT_STATUS_ok &&
              xt_file_read(b, 0, bytes + size, size, &error) == XT_STATUS_ok && !memcmp(bytes, bytes + size, size);
  free(bytes);
  return same;
}

static bool is_copy(const char *a, const char *b) {
  xt_file one = {.fd = -1}, other = {.fd = -1};
  xt_error error;
  bool same = xt_file_open(&one, a, &error) == XT_STATUS_ok && xt_file_open(&other, b, &error) == XT_STATUS_ok &&
              same_bytes(&one, &other);
  xt_file_close(&one);
  xt_file_close(&other);
  return same;
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool xt_libraries_shares(const char *linked, const char *other) {
  struct stat a, b;
  bool same_name = !strcmp(base_name(linked), base_name(other));
  if (stat(linked, &a)) return same_name;
  if (stat(other, &b)) return false;
  return (a.st_dev == b.st_dev && a.st_ino == b.st_ino) || is_copy(linked, other);
}
