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
  xt_region *memory;      /* the mapped file, or the binary */
  bool open;              /* opening has finished */
  unsigned readers, cpus; /* see xt_record_reader */
  xt_drop drop;
  uint64_t files;
  bool mapped;          /* `memory` is a mapped file: touching it may read from disk */
  uint64_t total_bytes; /* the limit of the bytes of all tensors that one call may load */
  xt_need need;         /* the bytes that opening waits for, if a source is read by Elixir */
} xt_checkpoint_handle;

/* The state word is 2 × (calls inside) + (1 if closed):
 *
 *   0        open, idle      enter → 2, close → 1 (and the handle is freed)
 *   2n       n calls inside  enter → 2n + 2, leave → 2n - 2, close → 2n + 1
 *   2n + 1   closed          enter fails, leave → 2n - 1; the call that brings the word to 1 frees the handle
 *
 * A checkpoint that a source fills is entered exclusively (0 → 2) until it is open; other calls fail. */
typedef struct {
  atomic_uint_least64_t state;
  xt_checkpoint_handle *handle;
} xt_checkpoint_resource;

typedef struct {
  bool strict, mmap, populate, verify;
  xt_limits limits;
  uint64_t offset, total_bytes;
  unsigned readers, cpus;
  xt_drop drop;
} xt_checkpoint_options;

/* Decodes {strict?, mmap?, verify?, pickle_bytes, nodes, depth, tensor_bytes, memory, offset, total_bytes,
 * files, readers, cpus, drop, populate?}. */
bool xt_get_checkpoint_options(ErlNifEnv *env, ERL_NIF_TERM term, xt_checkpoint_options *out);

/* A NIF on the checkpoint argv[0]. The resource stays open while it runs. */
typedef ERL_NIF_TERM xt_checkpoint_call(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]);

/* The wrapper of these NIFs: enters the checkpoint, runs the call and leaves. Returns the error if the checkpoint is
 * closed or not open yet. */
ERL_NIF_TERM xt_checkpoint_run(ErlNifEnv *env, const ERL_NIF_TERM argv[], xt_checkpoint_call *call);

/* Same, for a call whose work grows with the checkpoint: on a normal scheduler if the checkpoint is small, otherwise
 * `nif`, whose name this is, runs again on a dirty one. */
typedef ERL_NIF_TERM xt_nif_function(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]);
ERL_NIF_TERM xt_checkpoint_run_by_size(ErlNifEnv *env, const char *name, xt_nif_function *nif, int argc,
                                       const ERL_NIF_TERM argv[], xt_checkpoint_call *call);

/* Same as xt_checkpoint_run, for a checkpoint that is being opened. Returns `:busy` if any other call is inside. */
ERL_NIF_TERM xt_checkpoint_run_exclusively(ErlNifEnv *env, const ERL_NIF_TERM argv[], xt_checkpoint_call *call);

/* Enters once more and keeps the resource, inside a call, for what lives longer than the call. */
void xt_checkpoint_hold(xt_checkpoint_resource *resource);
void xt_checkpoint_let_go(xt_checkpoint_resource *resource);

/* Closes the checkpoint. Returns true if it was open, that is for the first call only. */
bool xt_checkpoint_close(xt_checkpoint_resource *resource);

/* Returns an empty handle with the options' limits, or NULL if out of memory. The free function is also its xt_reapable
 * callback. */
xt_checkpoint_handle *xt_checkpoint_handle_new(const xt_checkpoint_options *options);
void xt_checkpoint_handle_free(xt_reapable *self);

/* Creates a checkpoint resource. Takes ownership of the handle. */
ERL_NIF_TERM xt_make_checkpoint(ErlNifEnv *env, xt_checkpoint_handle *handle);

/* Creates a checkpoint that a push parser fills. The resource is held. */
xt_status xt_checkpoint_for_push(ErlNifEnv *env, ERL_NIF_TERM options, xt_checkpoint_resource **out, ERL_NIF_TERM *made,
                                 xt_error *error);

/* Returns a reader of the records. It stops when the calling process dies. */
xt_record_reader xt_checkpoint_handle_reader(xt_checkpoint_handle *handle, ErlNifEnv *env, bool verify);

/* Returns the status of a read, or `:file_changed` if the file has changed since it was opened. */
xt_status xt_checkpoint_check_file(const xt_checkpoint_handle *handle, xt_status status, xt_error *error);

/* Checks the bytes of all tensors of a load against the limit. */
xt_status xt_checkpoint_check_total(const xt_checkpoint_handle *handle, uint64_t bytes, xt_error *error);

/* Makes the list of the entries that have this name, in file order, at most XT_MAX_SAME_NAME of them. Returns false if
 * out of memory. */
enum { XT_MAX_SAME_NAME = 20 };
bool xt_make_named_entries(ErlNifEnv *env, const xt_checkpoint *c, const ErlNifBinary *name, ERL_NIF_TERM *list);

/* Returns the bytes of all elements; for a sparse tensor, the bytes of all its parts. */
int64_t xt_tensor_desc_bytes(const xt_tensor_desc *tensor);

#endif
