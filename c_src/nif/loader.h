/* A loader: a push parser, and the tensors that are created as their storages become complete. */
#ifndef XT_NIF_LOADER_H
#define XT_NIF_LOADER_H

#include <erl_nif.h>

#include "core/formats/feed.h"
#include "nif/checkpoint.h"
#include "nif/tensor.h"

/* How much one call does before it returns to its process. A brief call takes a fraction of a millisecond, including
 * the page faults of new memory, so it can run on a normal scheduler. */
typedef struct {
  size_t bytes, tensors;
  bool brief;
} xt_loader_limits;

extern const xt_loader_limits xt_loader_dirty_limits, xt_loader_brief_limits;

/* Freed by the reaper thread. */
typedef struct {
  xt_reapable reapable; /* must be first */
  xt_push push;
  xt_checkpoint_resource *checkpoint; /* entered */
  uint32_t *missing;                  /* per entry: storages that are not complete; UINT32_MAX if not selected */
  size_t *first, *waiting;            /* the entries of storage s are waiting[first[s]] … waiting[first[s + 1] - 1] */
  size_t *users;                      /* per storage: entries that are not created yet */
  bool *counted;                      /* per storage: it was complete and is subtracted from `missing` */
  size_t *selected;                   /* the indices of the selected entries, in order */
  size_t selected_count;
  bool deferred;         /* the tensors are created at the end, by loader_finish */
  bool plain;            /* every selected tensor can be created in microseconds, or later */
  size_t next_immediate; /* the next entry to check for needing no storage */
  int64_t charged;       /* bytes of these arrays in the budget */
} xt_loader;

/* The tensors that a call has created. */
typedef struct {
  ErlNifEnv *env;
  ERL_NIF_TERM list; /* [{entry's index, tensor}], last one first */
  size_t count;
  xt_tensor_like like;
} xt_ready_tensors;

/* Selects the entries to create: a flag for each entry, or NULL for all. Called once, after the parser has described
 * the checkpoint. Fails if their tensors exceed the limit. Sets *bytes to the bytes that must arrive. */
xt_status xt_loader_select(xt_loader *loader, const bool *selected, uint64_t *bytes, xt_error *error);

/* Creates the entries that need no storage, such as meta tensors. Called once, after xt_loader_select. Like the next
 * function, does nothing if creation is deferred. */
xt_status xt_loader_make_immediate(xt_loader *loader, xt_ready_tensors *out, xt_error *error);

/* Creates the entries whose last missing storage is this one. */
xt_status xt_loader_storage_complete(xt_loader *loader, size_t storage, xt_ready_tensors *out, xt_error *error);

#endif
