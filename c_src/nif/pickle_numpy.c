#include "nif/pickle_numpy.h"

#include <string.h>

/* Writes scalar(dtype(code, False, True), bytes). The state of the dtype is (3, '<', None, None, None, -1, -1, 0). */
void xt_pickle_numpy_scalar(xt_pickler *p, xt_dtype dtype, const uint8_t *bytes) {
  const char *code = xt_dtype_get(dtype)->numpy;
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
