/* Creates tensors of every kind from their descriptions in a checkpoint. */
#ifndef XT_NIF_MATERIALIZE_H
#define XT_NIF_MATERIALIZE_H

#include <erl_nif.h>

#include "core/checkpoint/record_reader.h"
#include "torch/torch.h"

/* Where the bytes of the tensors come from: a reader, or storages that are already in memory. */
typedef struct {
  const xt_checkpoint *checkpoint;
  const xt_record_reader *reader; /* NULL to use `regions` */
  xt_region *const *regions;      /* of each storage */
} xt_storage_origin;

/* Makes a %Tensor{}, or a %RawTensor{} if LibTorch does not have the dtype. The storages must be in memory. */
xt_status xt_materialize_term(ErlNifEnv *env, const xt_storage_origin *origin, const xt_tensor_desc *t,
                              ERL_NIF_TERM *out, xt_error *error);

/* Releases the tensors of a call that failed after it had created them. They would stay allocated until the next
 * garbage collection of the caller. */
void xt_release_terms(ErlNifEnv *env, const ERL_NIF_TERM *terms, size_t count);

/* Creates a strided, meta, sparse or quantized tensor, with its conj and neg bits and its requires_grad flag. */
xt_status xt_materialize_tensor(const xt_storage_origin *origin, const xt_tensor_desc *t, xt_tensor **out,
                                xt_error *error);

/* Makes a %RawTensor{}, for a dtype that LibTorch does not have. Takes ownership of the view's region. */
ERL_NIF_TERM xt_materialize_raw(ErlNifEnv *env, const xt_tensor_desc *t, xt_view *view);

#endif
