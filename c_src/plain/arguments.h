/* The arguments of an operator that plain/ has, by the position of their parameter. A getter whose argument is missing
 * or of another kind sets the status of the call, and returns something harmless: an operator gets all its arguments,
 * then checks the status once. */
#ifndef XT_PLAIN_ARGUMENTS_H
#define XT_PLAIN_ARGUMENTS_H

#include "plain/plain.h"

enum { XT_PLAIN_MAX_PARAMETERS = 8 };

typedef struct {
  const char *name;                                /* of the operator, without "aten::" and its overload */
  const char *parameters;                          /* their names, separated by spaces */
  const xt_value *values[XT_PLAIN_MAX_PARAMETERS]; /* NULL for those that were not given, or are nil */
  xt_status status;
  xt_error *error;
  xt_arena *arena; /* for results that are lists */
} xt_plain_call;

/* Sets the arguments by position and by name. */
xt_status xt_plain_bind(xt_plain_call *call, const xt_op_call *op);

/* Fails with `:bad_argument`: "narrow: `dim` …". */
xt_status xt_plain_invalid(xt_plain_call *call, int parameter, const char *message);

bool xt_plain_has(const xt_plain_call *call, int parameter);

/* Any tensor, or NULL if there is none. */
xt_tensor *xt_plain_any_arg(xt_plain_call *call, int parameter);

/* A tensor that is strided and not quantized: its views and copies are memory alone. */
xt_tensor *xt_plain_tensor_arg(xt_plain_call *call, int parameter);

/* A list of such tensors, all with values. */
const xt_value *xt_plain_tensors_arg(xt_plain_call *call, int parameter, size_t *count);

int64_t xt_plain_int_arg(xt_plain_call *call, int parameter, int64_t otherwise);
double xt_plain_float_arg(xt_plain_call *call, int parameter, double otherwise);
bool xt_plain_bool_arg(xt_plain_call *call, int parameter, bool otherwise);

/* A list of integers or one integer. */
void xt_plain_ints_arg(xt_plain_call *call, int parameter, int64_t *ints, int *count);

/* The number of a dimension, where -1 is the last one, of `ndim`. */
int xt_plain_dim_arg(xt_plain_call *call, int parameter, int64_t otherwise, int ndim);

bool xt_plain_is_dtype(const xt_plain_call *call, int parameter);
xt_dtype xt_plain_dtype_arg(xt_plain_call *call, int parameter, xt_dtype otherwise);
xt_device xt_plain_device_arg(xt_plain_call *call, int parameter);

/* A number in one of the types of core/base/element.h. */
typedef struct {
  xt_dtype dtype; /* int64, bool, float64 or complex128 */
  double parts[2];
  int64_t integer;
} xt_plain_scalar;

xt_plain_scalar xt_plain_scalar_arg(xt_plain_call *call, int parameter, int64_t otherwise);

/* Writes the number to `numel` elements. */
void xt_plain_fill(const xt_tensor *tensor, const xt_plain_scalar *scalar);

/* Makes the tensor the result, if the status is ok. It is passed by its address, because the call that makes it is
 * usually the first argument. */
static inline xt_status xt_plain_return(xt_status status, xt_tensor *const *tensor, xt_value *out) {
  if (status == XT_STATUS_ok) *out = (xt_value){.kind = XT_VALUE_TENSOR, .tensor = *tensor};
  return status;
}

/* ---- The operators, by topic ---- */

typedef xt_status xt_plain_operator(xt_plain_call *call, xt_value *out);

/* X(name, parameters). An operator called x is xt_plain_op_x. */
#define XT_PLAIN_OPERATORS(X)                                                             \
  X(alias, "self")                                                                        \
  X(detach, "self")                                                                       \
  X(view, "self size")                                                                    \
  X(reshape, "self shape")                                                                \
  X(flatten, "self start_dim end_dim")                                                    \
  X(permute, "self dims")                                                                 \
  X(transpose, "self dim0 dim1")                                                          \
  X(t, "self")                                                                            \
  X(squeeze, "self dim")                                                                  \
  X(unsqueeze, "self dim")                                                                \
  X(expand, "self size implicit")                                                         \
  X(select, "self dim index")                                                             \
  X(slice, "self dim start end step")                                                     \
  X(narrow, "self dim start length")                                                      \
  X(chunk, "self chunks dim")                                                             \
  X(split, "self split_size dim")                                                         \
  X(as_strided, "self size stride storage_offset")                                        \
  X(contiguous, "self memory_format")                                                     \
  X(clone, "self memory_format")                                                          \
  X(to, "self dtype layout device pin_memory non_blocking copy memory_format")            \
  X(copy_, "self src non_blocking")                                                       \
  X(fill_, "self value")                                                                  \
  X(zero_, "self")                                                                        \
  X(flip, "self dims")                                                                    \
  X(cat, "tensors dim")                                                                   \
  X(stack, "tensors dim")                                                                 \
  X(empty, "size dtype layout device pin_memory memory_format")                           \
  X(zeros, "size dtype layout device pin_memory")                                         \
  X(ones, "size dtype layout device pin_memory")                                          \
  X(full, "size fill_value dtype layout device pin_memory")                               \
  X(rand, "size dtype layout device pin_memory")                                          \
  X(randn, "size dtype layout device pin_memory")                                         \
  X(arange, "start end step dtype layout device pin_memory")                              \
  X(zeros_like, "self dtype layout device pin_memory memory_format")                      \
  X(ones_like, "self dtype layout device pin_memory memory_format")                       \
  X(empty_like, "self dtype layout device pin_memory memory_format")                      \
  X(empty_strided, "size stride dtype layout device pin_memory")                          \
  X(equal, "self other")                                                                  \
  X(item, "self")                                                                         \
  X(_conj, "self")                                                                        \
  X(_neg_view, "self")                                                                    \
  X(resolve_conj, "self")                                                                 \
  X(resolve_neg, "self")                                                                  \
  X(_validate_sparse_coo_tensor_args, "indices values size")                              \
  X(_validate_sparse_compressed_tensor_args, "compressed plain values size layout")       \
  X(sparse_coo_tensor, "indices values size dtype layout device pin_memory is_coalesced") \
  X(sparse_compressed_tensor, "compressed plain values size dtype layout device")         \
  X(_indices, "self")                                                                     \
  X(_values, "self")                                                                      \
  X(crow_indices, "self")                                                                 \
  X(ccol_indices, "self")                                                                 \
  X(col_indices, "self")                                                                  \
  X(row_indices, "self")                                                                  \
  X(indices, "self")                                                                      \
  X(values, "self")                                                                       \
  X(to_sparse, "self")                                                                    \
  X(to_dense, "self dtype")                                                               \
  X(is_coalesced, "self")                                                                 \
  X(_make_per_tensor_quantized_tensor, "self scale zero_point")                           \
  X(_make_per_channel_quantized_tensor, "self scale zero_point axis")                     \
  X(int_repr, "self")                                                                     \
  X(dequantize, "self")                                                                   \
  X(q_scale, "self")                                                                      \
  X(q_zero_point, "self")                                                                 \
  X(q_per_channel_scales, "self")                                                         \
  X(q_per_channel_zero_points, "self")                                                    \
  X(q_per_channel_axis, "self")

#define XT_PLAIN_DECLARE(name, parameters) xt_plain_operator xt_plain_op_##name;
XT_PLAIN_OPERATORS(XT_PLAIN_DECLARE)
#undef XT_PLAIN_DECLARE

#endif
