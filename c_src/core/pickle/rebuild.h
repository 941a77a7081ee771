/* Rebuilding: interprets the globals, calls and persistent ids of a pickle. Storages, tensors, NumPy arrays and a few
 * Python types become nodes of a specific kind. Everything else becomes an inert object that names its class. Nothing
 * is imported or called. */
#ifndef XT_PICKLE_REBUILD_H
#define XT_PICKLE_REBUILD_H

#include "core/pickle/node.h"

/* What the persistent ids of a pickle stand for. */
typedef enum {
  XT_IDS_RECORDS, /* ('storage', class, key, location, numel): each storage in a separate record */
  XT_IDS_LEGACY,  /* same with a view of the storage as sixth item; also ('module', class, …) */
  XT_IDS_LABELS,  /* key of a tensor or storage in `labels` (tar files) */
  XT_IDS_NONE     /* not allowed */
} xt_persistent_ids;

typedef struct {
  xt_arena *arena;
  bool strict; /* refuse what torch's weights_only unpickler refuses */
  xt_persistent_ids ids;
  const char *key_prefix;   /* added to storage keys, to keep those of several pickles apart; NULL if there is none */
  xt_storages *storages;    /* where the storages that the pickle names are added */
  xt_table labels;          /* XT_IDS_LABELS: key → node */
  size_t nested_count;      /* nested checkpoints read so far; see rebuild_nested.c */
  bool nested;              /* reading one of them now */
  size_t nested_bytes_left; /* bytes that further nested checkpoints may have; at first the size of the pickle */
  int64_t at;               /* byte offset of the current opcode, for errors */
  xt_error *error;
} xt_rebuild;

void xt_rebuild_free(xt_rebuild *rebuild);

/* Turns a global that names a dtype into a dtype node. In strict mode refuses globals that weights_only refuses. */
xt_status xt_rebuild_global(xt_rebuild *rebuild, xt_node *global);

/* Interprets callable(*args). Leaves *out NULL if the call has no special meaning. */
xt_status xt_rebuild_reduce(xt_rebuild *rebuild, xt_node *callable, xt_node *args, xt_node **out);

/* Interprets setting state on a value. Sets *done if that has a special meaning; the value is then changed in place. */
xt_status xt_rebuild_build(xt_rebuild *rebuild, xt_node *target, xt_node *state, bool *done);

/* Resolves a persistent id; see xt_persistent_ids. */
xt_status xt_rebuild_persistent(xt_rebuild *rebuild, xt_node *id, xt_node **out);

/* Returns the dtype of a storage class (float32 for FloatStorage, uint8 for untyped storages), or XT_DTYPE_COUNT if it
 * is not a storage class. */
xt_dtype xt_rebuild_storage_dtype(const xt_node *class);

#endif
