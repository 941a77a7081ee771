/* The checkpoint resource: an open checkpoint and the file or memory that it is read from. */
#ifndef XT_NIF_CHECKPOINT_H
#define XT_NIF_CHECKPOINT_H

#include <erl_nif.h>

#include "core/checkpoint/record_reader.h"
#include "nif/term.h"

/* Freed by the reaper thread. */
typedef struct {
  xt_reapable reapable; /* must be first */
  xt_checkpoint checkpoint;
  xt_file file;
  xt_region *memory; /* the mapped file, or the binary */
  bool open;         /* opening has finished */
  xt_need need;      /* the bytes that opening waits for, if a source is read by Elixir */
} xt_checkpoint_handle;

/* The state word works like that of a tensor (nif/tensor.h): 2 × (calls that use the handle) + (1 if closed). */
typedef struct {
  atomic_uint_least64_t state;
  xt_checkpoint_handle *handle;
} xt_checkpoint_resource;

typedef struct {
  bool strict, mmap, verify;
  xt_limits limits;
  uint64_t offset;
} xt_checkpoint_options;

/* Decodes {strict?, mmap?, verify?, pickle_bytes, nodes, depth, tensor_bytes, memory, offset}. */
bool xt_get_checkpoint_options(ErlNifEnv *env, ERL_NIF_TERM term, xt_checkpoint_options *out);

bool xt_get_checkpoint(ErlNifEnv *env, ERL_NIF_TERM term, xt_checkpoint_resource **out);

/* The handle stays valid between enter and leave. Enter fails if the checkpoint is closed or not open yet. */
xt_status xt_checkpoint_enter(xt_checkpoint_resource *resource, xt_error *error);
void xt_checkpoint_leave(xt_checkpoint_resource *resource);

/* Same as xt_checkpoint_enter, but also enters a checkpoint that is not open yet. */
xt_status xt_checkpoint_enter_unopened(xt_checkpoint_resource *resource, xt_error *error);

/* Returns an empty handle, or NULL if out of memory. The free function is also its xt_reapable callback. */
xt_checkpoint_handle *xt_checkpoint_handle_new(void);
void xt_checkpoint_handle_free(xt_reapable *self);

/* Creates a checkpoint resource. Takes ownership of the handle. */
ERL_NIF_TERM xt_make_checkpoint(ErlNifEnv *env, xt_checkpoint_handle *handle);

/* Creates a checkpoint that a push parser fills. The resource is kept and entered: the caller must call
 * xt_checkpoint_leave and release the resource. */
xt_status xt_checkpoint_for_push(ErlNifEnv *env, ERL_NIF_TERM options, xt_checkpoint_resource **out, ERL_NIF_TERM *made,
                                 xt_error *error);

/* Returns a reader of the records. It stops when the calling process dies. */
xt_record_reader xt_checkpoint_handle_reader(xt_checkpoint_handle *handle, ErlNifEnv *env, bool verify);

/* Returns the status of a read, or `:file_changed` if the file has changed since it was opened. */
xt_status xt_checkpoint_check_file(const xt_checkpoint_handle *handle, xt_status status, xt_error *error);

/* Returns the bytes of all elements; for a sparse tensor, the bytes of all its parts. */
int64_t xt_tensor_desc_bytes(const xt_tensor_desc *tensor);

#endif
