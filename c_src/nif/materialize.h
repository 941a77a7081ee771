/* Tensors of every kind, out of what a checkpoint says of them. */
#ifndef XT_NIF_MATERIALIZE_H
#define XT_NIF_MATERIALIZE_H

#include <erl_nif.h>

#include "core/checkpoint/record_reader.h"
#include "torch/torch.h"

/* Where the bytes of a strided tensor come from: a reader, or storages that were read. */
typedef struct {
  const xt_checkpoint *checkpoint;
  const xt_record_reader *reader; /* NULL: the regions of the storages */
  xt_region *const *regions;
} xt_storage_origin;

/* What stands for the tensor in a term, over storages that were read: a %Tensor{}, or a %RawTensor{} where LibTorch
 * lacks the dtype. */
xt_status xt_materialize_term(ErlNifEnv *env, const xt_storage_origin *from, const xt_tensor_desc *t, ERL_NIF_TERM *out,
                              xt_error *error);

/* Strided, meta, sparse or quantized; conj and neg bits and the mark for gradients are set. */
xt_status xt_materialize_tensor(const xt_storage_origin *from, const xt_tensor_desc *t, xt_tensor **out,
                                xt_error *error);

/* %RawTensor{}: a dtype that LibTorch lacks. The view's region is taken over. */
ERL_NIF_TERM xt_materialize_raw(ErlNifEnv *env, const xt_tensor_desc *t, xt_view *view);

#endif
