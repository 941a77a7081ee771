/* Tensors without LibTorch: the functions of torch/torch.h in plain C, for tensors that are memory. They can be made,
 * viewed, copied, converted, compared and saved; `arguments.h` has the list of operators. Every other operator is
 * `:unsupported`.
 *
 * A storage is reference-counted memory; a tensor is a handle (torch/torch.h) that is a view of a storage, has no
 * memory (meta), or consists of parts, which are tensors: a sparse tensor of its indices and values, a quantized one of
 * its integers, which are its storage, and its scales and zero points. */
#ifndef XT_PLAIN_PLAIN_H
#define XT_PLAIN_PLAIN_H

#include <stdatomic.h>

#include "torch/torch.h"

/* Returns the functions. `hint` says how to get an operator that is missing; it ends the messages of errors. */
const xt_torch_api *xt_plain_open(const char *hint);

/* ---- Storages and handles (tensor.c) ---- */

typedef struct {
  atomic_int references;
  void *data;
  size_t bytes;
  void *owner;
  void (*release)(void *owner);
} xt_plain_storage;

enum { XT_PLAIN_PARTS = 3 };

/* What sparse and quantized tensors have besides a shape. The parts that give other numbers their meaning are frozen
 * for as long as the tensor lives. */
typedef struct {
  xt_tensor *list[XT_PLAIN_PARTS]; /* as in a checkpoint: indices and values, or scales and zero points */
  int count;
  xt_frozen frozen[2];
  bool coalesced;
  double scale;
  int64_t zero_point, axis;
} xt_plain_parts;

typedef struct {
  xt_tensor tensor;          /* must be first */
  xt_plain_storage *storage; /* NULL for meta and sparse tensors */
  xt_plain_parts *parts;     /* NULL for tensors that are memory alone */
  int64_t dims[];            /* sizes, then strides */
} xt_plain_handle;

static inline const xt_plain_handle *xt_plain_of(const xt_tensor *tensor) { return (const xt_plain_handle *)tensor; }

/* The shape of a new tensor, before it is checked. */
typedef struct {
  xt_dtype dtype;
  int ndim;
  int64_t sizes[XT_MAX_DIMS], strides[XT_MAX_DIMS];
  size_t offset; /* bytes from the beginning of the storage */
} xt_plain_shape;

/* Gives the shape the strides of contiguous memory. */
void xt_plain_shape_contiguous(xt_plain_shape *shape);

/* Returns the shape of a tensor that has strides, to make another view of it. */
xt_plain_shape xt_plain_shape_of(const xt_tensor *tensor);

/* Makes a view with the shape, which is checked against the storage. */
xt_status xt_plain_view(const xt_tensor *tensor, const xt_plain_shape *shape, xt_tensor **out, xt_error *error);

/* Makes a tensor with uninitialized memory. The offset must be 0. */
xt_status xt_plain_alloc(const xt_plain_shape *shape, xt_tensor **out, xt_error *error);

/* Same, but contiguous: sets the strides and the offset. */
xt_status xt_plain_empty(xt_plain_shape *shape, xt_tensor **out, xt_error *error);

/* Makes a tensor without memory. */
xt_status xt_plain_meta(const xt_plain_shape *shape, xt_tensor **out, xt_error *error);

/* Makes a handle that has the same storage, if any, and takes ownership of the parts. */
xt_status xt_plain_compose(const xt_tensor *tensor, const xt_plain_shape *shape, uint8_t layout, uint8_t scheme,
                           xt_plain_parts *parts, xt_tensor **out, xt_error *error);

/* Releases a reference. The last one frees the handle on this thread. */
void xt_plain_drop(xt_tensor *tensor);

/* Fills the error of an allocation of xt_memory_alloc that was refused. */
xt_status xt_plain_refused(xt_error *error);

xt_status xt_plain_tensor_empty(xt_dtype dtype, int ndim, const int64_t *sizes, xt_tensor **out, xt_error *error);
xt_status xt_plain_tensor_foreign(const xt_foreign *memory, xt_tensor **out, xt_error *error);
xt_status xt_plain_tensor_view(const xt_tensor *bytes, xt_dtype dtype, const xt_tensor_layout *layout, xt_tensor **out,
                               xt_error *error);
xt_status xt_plain_tensor_set_requires_grad(const xt_tensor *tensor, bool requires_grad, xt_tensor **out,
                                            xt_error *error);

/* ---- Values (values.c) ---- */

/* Copies elements between tensors of the same shape and dtype, whatever their strides. */
void xt_plain_copy(const xt_tensor_info *to, const xt_tensor_info *from);

/* Fails if the tensor's values are not strided memory. */
xt_status xt_plain_check_strided(const xt_tensor *tensor, xt_error *error);

/* Gives the shape of a new tensor the strides of this one if they leave no gaps, as torch does, else contiguous ones.
 * Returns whether the elements of both are in the same order in memory, without gaps. */
bool xt_plain_keep_order(const xt_tensor *tensor, xt_plain_shape *shape);

/* Returns a copy. */
xt_status xt_plain_clone(const xt_tensor *tensor, xt_tensor **out, xt_error *error);

/* Returns the tensor itself, with another reference, if it is contiguous, else a copy. */
xt_status xt_plain_contiguous(const xt_tensor *tensor, xt_tensor **out, xt_error *error);

/* Returns a tensor with converted elements. */
xt_status xt_plain_convert(const xt_tensor *tensor, xt_dtype dtype, xt_tensor **out, xt_error *error);

xt_status xt_plain_check_device(xt_device device, xt_error *error);
xt_status xt_plain_tensor_plain(const xt_tensor *tensor, xt_tensor **out, xt_error *error);
xt_status xt_plain_tensor_to(const xt_tensor *tensor, xt_dtype dtype, xt_device device, xt_tensor **out,
                             xt_error *error);
xt_status xt_plain_tensor_equal(const xt_tensor *a, const xt_tensor *b, bool *equal, xt_error *error);

/* ---- Sparse and quantized tensors (parts.c) ---- */

/* Returns a copy of a sparse or quantized tensor. */
xt_status xt_plain_clone_parts(const xt_tensor *tensor, xt_tensor **out, xt_error *error);

xt_status xt_plain_dequantize(const xt_tensor *tensor, xt_tensor **out, xt_error *error);

/* Returns a sparse tensor as a contiguous one (dense.c). */
xt_status xt_plain_dense(const xt_tensor *tensor, xt_tensor **out, xt_error *error);

/* ---- Operators (creation.c) ---- */

xt_status xt_plain_op(const xt_op_call *call, xt_arena *arena, xt_value **results, size_t *count, xt_error *error);

/* The state of the random numbers. */
void xt_plain_seed(uint64_t seed);

/* How to get what this build does not have. */
extern const char *xt_plain_hint;

#endif
