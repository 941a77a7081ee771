/* Describes LibTorch's tensors for a save. */
#ifndef XT_NIF_SAVE_TENSOR_H
#define XT_NIF_SAVE_TENSOR_H

#include "core/checkpoint/save_plan.h"
#include "torch/torch.h"

/* Describes a tensor, and asks LibTorch for the parts of a sparse or quantized one. The views own references to the
 * tensors that they are views of; the sizes of the tensor are valid as long as its handle. */
xt_status xt_save_tensor_describe(xt_tensor *handle, xt_save_tensor *out, xt_error *error);

/* Lets the elements of a strided tensor be converted to another dtype when they are written. */
void xt_save_tensor_cast(xt_save_tensor *tensor, xt_dtype dtype);

/* Converts a view of a payload to plain contiguous CPU memory, from the byte `from` of the payload on: all of it, or a
 * part if it is cast or on another device. `named`: the payload has the elements of the view, not its storage. Sets
 * *size to the number of bytes. The caller drops *fetched. */
xt_status xt_save_tensor_fetch(const xt_save_view *view, const xt_payload *payload, bool named, uint64_t from,
                               xt_tensor **fetched, uint64_t *size, xt_error *error);

#endif
