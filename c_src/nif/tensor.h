/* The tensor resource: what an ExTorch.Tensor's `resource` is. */
#ifndef XT_NIF_TENSOR_H
#define XT_NIF_TENSOR_H

#include <erl_nif.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "torch/torch.h"

/* The opened table of extorch_torch.so. */
extern const xt_torch_api *xt_torch;

/* One word holds the life of the handle, so that release/1 can race any number of calls:
 *
 *   state = 2 × calls using the handle + 1 if released
 *
 * A call enters only while the bit is clear. Whoever brings the word to exactly 1, the releasing call or the last
 * user, drops handle and owner; the word stays 1 for ever. */
typedef struct {
  atomic_uint_least64_t state;
  xt_tensor *handle;
  _Atomic(void *) owner; /* the resource that blobs of this tensor have as their owner, made by the first */
} xt_tensor_resource;

/* A %Tensor{}, a %BlobView{} or the resource itself. False: something else. */
bool xt_get_tensor(ErlNifEnv *env, ERL_NIF_TERM term, xt_tensor_resource **out);

/* Gives a handle back; the last one goes to the reaper. */
void xt_tensor_drop(xt_tensor *tensor);

/* Between use and done the handle lives. Use fails with `:released`. */
xt_status xt_tensor_enter(xt_tensor_resource *resource, xt_error *error);
void xt_tensor_leave(xt_tensor_resource *resource);

/* The handle of a tensor term, kept: the caller drops it. Fails with `:released`. */
xt_status xt_tensor_take(xt_tensor_resource *resource, xt_tensor **out, xt_error *error);

/* A %Tensor{} around the handle, which is taken over. */
ERL_NIF_TERM xt_make_tensor(ErlNifEnv *env, xt_tensor *handle);

/* Is it memory that can be handed out? If not, the error says what to do instead. */
xt_status xt_tensor_check_plain(const xt_tensor_info *info, xt_error *error);

/* After its values were used: is its memory a mapped file that lost pages meanwhile? */
xt_status xt_tensor_check_memory(const xt_tensor *tensor, xt_error *error);

/* The usual ending of a NIF that made a tensor: {:ok, tensor, bytes} or the error. */
ERL_NIF_TERM xt_return_tensor(ErlNifEnv *env, xt_status status, xt_tensor *handle, xt_error *error);

#endif
