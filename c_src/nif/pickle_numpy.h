/* numpy scalars in pickles. */
#ifndef XT_NIF_PICKLE_NUMPY_H
#define XT_NIF_PICKLE_NUMPY_H

#include "core/base/dtype.h"
#include "core/pickle/pickler.h"

/* Writes a scalar of a dtype that numpy has. */
void xt_pickle_numpy_scalar(xt_pickler *p, xt_dtype dtype, const uint8_t *bytes);

#endif
