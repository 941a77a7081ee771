/* numpy scalars in pickles. */
#ifndef XT_NIF_PICKLE_NUMPY_H
#define XT_NIF_PICKLE_NUMPY_H

#include "core/base/dtype.h"
#include "core/pickle/pickler.h"

/* Returns numpy's code of a dtype, for example "f4" for float32. Returns false if numpy does not have the dtype. */
bool xt_pickle_numpy_code(xt_dtype dtype, char code[8]);

/* Writes a scalar. `code` is its xt_pickle_numpy_code. */
void xt_pickle_numpy_scalar(xt_pickler *p, xt_dtype dtype, const char *code, const uint8_t *bytes);

#endif
