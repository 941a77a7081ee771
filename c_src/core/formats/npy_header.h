/* The header of an array in numpy's .npy format. All numbers are little-endian.
 *
 *   1. "\x93NUMPY" · major version u8 · minor version u8
 *   2. Length of the text: u16 in version 1, u32 in versions 2 and 3
 *   3. Text, padded with spaces and ending in a line end: a dict as Python writes it,
 *      {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
 *   4. The elements in row-major order, or in column-major order if fortran_order is True
 *
 * descr is the byte order (< > = or | for none), the kind and the size of the elements. Structured types have a list
 * instead, and the elements of type O are a pickle: these are refused.
 */
#ifndef XT_FORMATS_NPY_HEADER_H
#define XT_FORMATS_NPY_HEADER_H

#include "core/base/buffer.h"
#include "core/base/dtype.h"
#include "core/base/error.h"

#define XT_NPY_MAGIC "\x93NUMPY"

enum {
  XT_NPY_PREFIX = 12,        /* bytes that xt_npy_header_size needs */
  XT_NPY_MAX_HEADER = 65536, /* numpy's own limit is 10,000 */
  XT_NPY_ALIGNMENT = 64      /* of the elements in files that are written */
};

typedef struct {
  xt_dtype dtype;
  bool big_endian, fortran_order;
  uint32_t ndim;
  int64_t sizes[XT_MAX_DIMS];
  uint64_t bytes; /* of the elements */
} xt_npy_header;

/* Sets *size to the size of the header, from the first XT_NPY_PREFIX bytes. `name` is that of the array, for errors. */
xt_status xt_npy_header_size(const uint8_t *prefix, const char *name, size_t *size, xt_error *error);

/* Reads a whole header of the given size. */
xt_status xt_npy_read_header(const uint8_t *data, size_t size, const char *name, xt_npy_header *out, xt_error *error);

/* Appends the header of a little-endian array in row-major order. The dtype must be one that numpy has. */
void xt_npy_write_header(xt_buffer *out, xt_dtype dtype, const int64_t *sizes, int ndim);

#endif
