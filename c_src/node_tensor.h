/* Tensors of every kind, out of what a checkpoint says of them. */
#ifndef XT_NODE_TENSOR_H
#define XT_NODE_TENSOR_H

#include <erl_nif.h>

#include "core/loader.h"
#include "torch/xt_torch.h"

/* Where the bytes of a strided tensor come from: a reader, or a loader that has read them. */
typedef struct {
  const xt_checkpoint *checkpoint;
  const xt_reader *reader; /* NULL: the loader */
  const xt_loader *loader;
} xt_origin;

/* Strided, meta, sparse or quantized; conj and neg bits and the mark for gradients are set. */
xt_status xt_node_make_tensor(const xt_origin *from, const xt_node_tensor *t, xt_tensor **out, xt_error *error);

/* %RawTensor{}: a dtype that LibTorch lacks. The view's region is taken over. */
ERL_NIF_TERM xt_node_make_raw(ErlNifEnv *env, const xt_node_tensor *t, xt_view *view);

/* Has it no values? */
bool xt_node_is_meta(const xt_checkpoint *c, const xt_node_tensor *t);

#endif
