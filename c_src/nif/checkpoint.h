/* The checkpoint resource: an open checkpoint and where its bytes are. */
#ifndef XT_NIF_CHECKPOINT_H
#define XT_NIF_CHECKPOINT_H

#include <erl_nif.h>

#include "core/checkpoint/record_reader.h"
#include "nif/term.h"

/* Life, as a tensor's (nif_tensor.h): state = 2 × calls inside + 1 if closed. What is inside is freed by the reaper. */
typedef struct {
  xt_reapable reapable; /* first */
  xt_checkpoint checkpoint;
  xt_file file;
  xt_region *memory; /* the file's map, or the binary */
  bool open;         /* parsed to the end */
  xt_need need;      /* what the source was asked for, while it is not */
} xt_checkpoint_handle;

typedef struct {
  atomic_uint_least64_t state;
  xt_checkpoint_handle *handle;
} xt_checkpoint_resource;

bool xt_checkpoint_register(ErlNifEnv *env);
bool xt_batch_load_register(ErlNifEnv *env);

bool xt_get_checkpoint(ErlNifEnv *env, ERL_NIF_TERM term, xt_checkpoint_resource **out);
xt_status xt_checkpoint_enter(xt_checkpoint_resource *resource, xt_error *error);
void xt_checkpoint_leave(xt_checkpoint_resource *resource);

/* As xt_checkpoint_enter, for a checkpoint that may still be opening. */
xt_status xt_checkpoint_enter_unopened(xt_checkpoint_resource *resource, xt_error *error);

/* An empty handle; NULL when there is no memory. The free function is the reaper's too. */
xt_checkpoint_handle *xt_checkpoint_handle_new(void);
void xt_checkpoint_handle_free(xt_reapable *self);

/* The resource term of a handle, which it takes over. */
ERL_NIF_TERM xt_make_checkpoint(ErlNifEnv *env, xt_checkpoint_handle *handle);

/* A checkpoint that a stream will describe: kept, and in use until xt_checkpoint_leave. */
xt_status xt_checkpoint_for_push(ErlNifEnv *env, ERL_NIF_TERM options, xt_checkpoint_resource **out, ERL_NIF_TERM *term,
                                 xt_error *error);

/* How the bytes of an opened checkpoint are read for this caller. */
xt_record_reader xt_checkpoint_handle_reader(xt_checkpoint_handle *handle, ErlNifEnv *env, bool verify);

/* The status of a read: if the file changed meanwhile, `:file_changed` in place of what was found in it. */
xt_status xt_checkpoint_check_file(const xt_checkpoint_handle *handle, xt_status status, xt_error *error);

/* A binary over a region, which is taken over. */
ERL_NIF_TERM xt_make_region_binary(ErlNifEnv *env, xt_region *region, const void *data, size_t size);

/* A frozen region over a binary, pinned; NULL when there is no memory. */
xt_region *xt_pin_binary(ERL_NIF_TERM binary);

/* Bytes of a tensor's elements; of all its parts, when it is sparse. */
int64_t xt_tensor_desc_bytes(const xt_tensor_desc *tensor);

/* %ExTorch.Checkpoint.Entry{} */
ERL_NIF_TERM xt_make_entry(ErlNifEnv *env, const xt_checkpoint *c, size_t i);

/* A leaf of the object tree or a key: everything but tensors. False when there is no memory. */
bool xt_make_node(ErlNifEnv *env, const xt_checkpoint *c, const xt_node *node, ERL_NIF_TERM *out);

#endif
