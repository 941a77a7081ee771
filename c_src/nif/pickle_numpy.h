/* numpy scalars in pickles. */
#ifndef XT_NIF_PICKLE_NUMPY_H
#define XT_NIF_PICKLE_NUMPY_H

#include "core/base/dtype.h"
#include "core/pickle/pickler.h"

/* "f4" of float32; false where numpy has no such dtype. */
bool xt_pickle_numpy_code(xt_dtype dtype, char code[8]);

void xt_pickle_numpy_scalar(xt_pickler *p, xt_dtype dtype, const char *code, const uint8_t *bytes);

#endif
