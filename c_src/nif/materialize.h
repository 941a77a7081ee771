/* Creates tensors of every kind from their descriptions in a checkpoint. */
#ifndef XT_NIF_MATERIALIZE_H
#define XT_NIF_MATERIALIZE_H

#include <erl_nif.h>

#include "core/checkpoint/record_reader.h"
#include "nif/object.h"
#include "nif/tensor.h"
#include "torch/torch.h"

/* Where the bytes of the tensors come from: storages that are already in memory, and a reader for the others. */
typedef struct {
  const xt_checkpoint *checkpoint;
  const xt_record_reader *reader; /* may be NULL if `regions` has all storages */
  xt_region *const *regions;      /* of each storage; may be NULL */
} xt_storage_origin;

/* Makes a %Tensor{}, or a %RawTensor{} if LibTorch does not have the dtype. `like` is zeroed before the first one of a
 * call. */
xt_status xt_materialize_term(ErlNifEnv *env, const xt_storage_origin *origin, const xt_tensor_desc *t,
                              xt_tensor_like *like, ERL_NIF_TERM *out, xt_error *error);

/* Releases the tensors of a call that failed after it had created them. They would stay allocated until the next
 * garbage collection of the caller. */
void xt_release_terms(ErlNifEnv *env, const ERL_NIF_TERM *terms, size_t count);

/* Makes the tensors of the entries, of all if `entries` is NULL: as a list, or in place in the whole object if there is
 * a style, which needs all entries. A tensor that the file contains several times is made once. */
xt_status xt_materialize_entries(ErlNifEnv *env, const xt_storage_origin *origin, const size_t *entries, size_t count,
                                 const xt_object_style *style, ERL_NIF_TERM *out, xt_error *error);

/* Creates a strided, meta, sparse or quantized tensor, with its conj and neg bits and its requires_grad flag. */
xt_status xt_materialize_tensor(const xt_storage_origin *origin, const xt_tensor_desc *t, xt_tensor **out,
                                xt_error *error);

/* Same, but fails with `:unsupported` if LibTorch does not have the dtype. */
xt_status xt_materialize_supported(const xt_storage_origin *origin, const xt_tensor_desc *t, xt_tensor **out,
                                   xt_error *error);

/* Whether the tensor needs nothing but the bytes of one storage, so that it can be created in microseconds. */
bool xt_materialize_is_plain(const xt_checkpoint *c, const xt_tensor_desc *t);

#endif
