#include "nif/pickle_numpy.h"

#include <stdio.h>
#include <string.h>

bool xt_pickle_numpy_code(xt_dtype dtype, char code[8]) {
  const xt_dtype_info *info = xt_dtype_get(dtype);
  char kind = 0;
  if (info->kind == XT_KIND_INT) kind = 'i';
  else if (info->kind == XT_KIND_UINT) kind = 'u';
  else if (info->kind == XT_KIND_BOOL) kind = 'b';
  else if (dtype == XT_float16 || dtype == XT_float32 || dtype == XT_float64) kind = 'f';
  else if (dtype == XT_complex64 || dtype == XT_complex128) kind = 'c';
  snprintf(code, 8, "%c%u", kind ? kind : '?', (unsigned)info->size);
  return kind != 0;
}

/* Writes scalar(dtype(code, False, True), bytes). The state of the dtype is (3, '<', None, None, None, -1, -1, 0). */
void xt_pickle_numpy_scalar(xt_pickler *p, xt_dtype dtype, const char *code, const uint8_t *bytes) {
  size_t size = xt_dtype_get(dtype)->size;
  xt_pickler_put_global(p, "numpy.core.multiarray\nscalar\n");
  xt_pickler_put_global(p, "numpy\ndtype\n");
  xt_pickler_put_text(p, code, strlen(code));
  xt_pickler_put_bool(p, false);
  xt_pickler_put_bool(p, true);
  xt_pickler_put_tuple_of(p, 3);
  xt_pickler_put_reduce(p);
  xt_pickler_put_mark(p);
  xt_pickler_put_int(p, 3);
  xt_pickler_put_text(p, size == 1 ? "|" : "<", 1);
  for (int i = 0; i < 3; i++) xt_pickler_put_none(p);
  xt_pickler_put_int(p, -1);
  xt_pickler_put_int(p, -1);
  xt_pickler_put_int(p, 0);
  xt_pickler_put_tuple(p);
  xt_pickler_put_build(p);
  xt_pickler_put_bytes(p, bytes, size);
  xt_pickler_put_tuple_of(p, 2);
  xt_pickler_put_reduce(p);
}
