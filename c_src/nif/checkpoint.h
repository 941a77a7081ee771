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

typedef struct {
  bool strict, mmap, verify;
  xt_limits limits;
  uint64_t offset;
} xt_checkpoint_options;

/* {strict?, mmap?, verify?, pickle_bytes, nodes, depth, tensor_bytes, offset} */
bool xt_get_checkpoint_options(ErlNifEnv *env, ERL_NIF_TERM term, xt_checkpoint_options *out);

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

/* Bytes of a tensor's elements; of all its parts, when it is sparse. */
int64_t xt_tensor_desc_bytes(const xt_tensor_desc *tensor);

#endif
