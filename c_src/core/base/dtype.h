/* Element types: their names, sizes and numbers, generated from dtypes.def. */
#ifndef XT_BASE_DTYPE_H
#define XT_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum number of dimensions of a tensor, in all formats. */
#define XT_MAX_DIMS 64
#define XT_TOO_MANY_DIMS "more than 64 dimensions"

typedef enum {
#define XT_DTYPE(name, ...) XT_##name,
#include "core/base/dtypes.def"
#undef XT_DTYPE
  XT_DTYPE_COUNT
} xt_dtype;

typedef enum {
  XT_KIND_FLOAT,
  XT_KIND_INT,
  XT_KIND_UINT,
  XT_KIND_BOOL,
  XT_KIND_COMPLEX,
  XT_KIND_QUANT,
  XT_KIND_BITS
} xt_kind;

typedef struct {
  const char *name;
  size_t size;
  int torch; /* c10::ScalarType */
  xt_kind kind;
  const char *nx; /* "none" if Nx has no equivalent type */
  int nx_bits;
  const char *alias;
  int packed;                                /* bits of one element if several are packed into a byte, else 0 */
  const char *storage, *safetensors, *numpy; /* names elsewhere, "" for none: "Float", "F32", "f4" */
} xt_dtype_info;

const xt_dtype_info *xt_dtype_get(xt_dtype dtype);

/* Whether LibTorch can use elements at this address. Its code requires that an element is aligned to its own size, also
 * for complex numbers: vectorized instructions fault on a complex128 at an address of 8 modulo 16. */
static inline bool xt_dtype_aligned(const void *data, xt_dtype dtype) {
  return (uintptr_t)data % xt_dtype_get(dtype)->size == 0;
}

/* Returns the type of the integers behind a quantized type; other types are returned as they are. */
xt_dtype xt_dtype_plain(xt_dtype dtype);

/* These return XT_DTYPE_COUNT if there is no such type. */
xt_dtype xt_dtype_from_name(const char *name);
xt_dtype xt_dtype_from_nx(const char *nx, int64_t bits);
xt_dtype xt_dtype_from_torch(int torch);
xt_dtype xt_dtype_from_storage(const char *name, size_t size); /* "FloatStorage" */
xt_dtype xt_dtype_from_safetensors(const char *name, size_t size);
xt_dtype xt_dtype_from_numpy(const char *code, size_t size);

#ifdef __cplusplus
}
#endif

#endif
