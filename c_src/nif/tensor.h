/* The tensor resource: the `resource` field of %ExTorch.Tensor{}. */
#ifndef XT_NIF_TENSOR_H
#define XT_NIF_TENSOR_H

#include <erl_nif.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "torch/torch.h"

/* The functions of extorch_torch.so, or of plain/; NULL until native_load/3 has chosen them. */
extern const xt_torch_api *xt_torch;

/* Why it could not be loaded, if xt_torch is NULL. */
extern xt_error xt_torch_failure;

/* LibTorch may be loaded later. What needs core alone runs meanwhile. */
extern bool xt_torch_deferred;

/* One atomic word holds the state of the handle, so that release/1 can run concurrently with any number of calls:
 *
 *   state = 2 × (calls that use the handle) + (1 if released)
 *
 * A call can enter only while the lowest bit is clear. The call that brings the word to exactly 1, either release/1 or
 * the last user, drops the handle and the blob owner. The word then stays 1.
 *
 * The owner of blobs is a second resource with the same handle. It keeps the handle until it is destroyed, also after
 * release/1, because the blobs that refer to it contain the address of the memory. */
typedef struct {
  atomic_uint_least64_t state;
  xt_tensor *handle;
  bool is_blob_owner;
  _Atomic(void *) blob_owner; /* the xt_tensor_resource that owns the blobs of this tensor; NULL until the first blob */
} xt_tensor_resource;

/* Returns the resource's term of a %Tensor{} or a %BlobView{}; other terms as they are. */
ERL_NIF_TERM xt_tensor_term(ErlNifEnv *env, ERL_NIF_TERM term);

/* Decodes a %Tensor{}, a %BlobView{} or the resource itself. */
bool xt_get_tensor(ErlNifEnv *env, ERL_NIF_TERM term, xt_tensor_resource **out);

/* Releases a reference to a handle. The last one is freed by the reaper thread, or at once if it is light. */
void xt_tensor_drop(xt_tensor *tensor);

/* The handle stays valid between enter and leave. Enter fails with `:released`. */
xt_status xt_tensor_enter(xt_tensor_resource *resource, xt_error *error);
void xt_tensor_leave(xt_tensor_resource *resource);

static inline bool xt_tensor_is_released(const xt_tensor_resource *resource) {
  return atomic_load(&resource->state) & 1;
}

/* Returns a new reference to the handle, which the caller must drop. Fails with `:released`. */
xt_status xt_tensor_take(xt_tensor_resource *resource, xt_tensor **out, xt_error *error);

/* Same as xt_tensor_take, but also works for the owner of a blob after it was released. */
xt_status xt_tensor_pin(xt_tensor_resource *resource, xt_tensor **out, xt_error *error);

/* Creates a resource. Takes ownership of the reference to the handle. The caller must release the resource. */
xt_tensor_resource *xt_tensor_resource_new(xt_tensor *handle);

/* Makes a %Tensor{} of an existing resource. `shape` is the tuple of its sizes. */
ERL_NIF_TERM xt_make_tensor_struct(ErlNifEnv *env, xt_tensor_resource *resource, ERL_NIF_TERM shape);

/* Creates a %Tensor{}. Takes ownership of the reference to the handle. */
ERL_NIF_TERM xt_make_tensor(ErlNifEnv *env, xt_tensor *handle);

/* The last %Tensor{} that was made in a call. */
typedef struct {
  ERL_NIF_TERM term; /* 0 if there is none yet */
  const xt_tensor_info *info;
} xt_tensor_like;

/* Same. If the tensor has dtype, device and shape of the last one, its term shares the keys and the shape of that one:
 * many tensors of a file are alike. */
ERL_NIF_TERM xt_make_tensor_like(ErlNifEnv *env, xt_tensor *handle, xt_tensor_like *like);

/* Checks that the memory is plain and so can be shared. The error message names the alternative. */
xt_status xt_tensor_check_plain(const xt_tensor_info *info, xt_error *error);

/* Checks, after the values were read, that the memory is not a mapped file that was truncated in the meantime. */
xt_status xt_tensor_check_memory(const xt_tensor *tensor, xt_error *error);

/* Same as xt_make_result, for a tensor. Takes ownership of the reference to the handle. */
ERL_NIF_TERM xt_make_tensor_result(ErlNifEnv *env, xt_status status, xt_tensor *handle, const xt_error *error);

/* The dyncall of the tensor resource (export.c): fills an extorch_export, for include/extorch.h. */
void xt_export_tensor(ErlNifEnv *env, void *resource, void *export_data);

#endif
