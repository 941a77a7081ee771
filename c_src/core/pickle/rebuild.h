/* Rebuilding: interprets the globals, calls and persistent ids of a pickle. Storages, tensors, NumPy arrays and a few
 * Python types become nodes of a specific kind. Everything else becomes an inert object that names its class. Nothing
 * is imported or called. */
#ifndef XT_PICKLE_REBUILD_H
#define XT_PICKLE_REBUILD_H

#include "core/base/error.h"
#include "core/memory/table.h"
#include "core/pickle/node.h"

typedef struct {
  const char *key; /* "0": the record is data/0 */
  size_t key_size;
  const char *location; /* "cpu", "cuda:0" */
  size_t location_size;
  xt_dtype dtype;   /* of the storage's class; uint8 for untyped storages */
  xt_dtype element; /* of its tensors; decides which bytes are swapped in a big-endian file */
  int64_t numel;
  uint64_t bytes;      /* numel × element size */
  const uint8_t *data; /* the bytes if the pickle itself contains them, otherwise NULL */
  bool big_endian;     /* byte order of `data` */
  uint8_t alignment;   /* the largest element size of its tensors */
} xt_storage;

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
  const char *key_prefix; /* added to storage keys, to keep those of several pickles apart; NULL if there is none */
  xt_storage *storages;
  size_t storage_count, storage_room;
  xt_table by_key;           /* key → index of the storage */
  xt_table labels;           /* XT_IDS_LABELS: key → node */
  size_t nested_count;       /* nested checkpoints read so far; see rebuild_nested.c */
  bool nested;               /* reading one of them now */
  size_t nested_bytes_left;  /* bytes that further nested checkpoints may have; at first the size of the pickle */
  uint64_t max_tensor_bytes; /* limit of one tensor's logical bytes; strides of 0 make them exceed its storage */
  int64_t at;                /* byte offset of the current opcode, for errors */
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

/* The pickled magic number with which a legacy checkpoint begins, without the leading PROTO opcode. A pickle can
 * contain such a checkpoint. */
#define XT_LEGACY_MAGIC "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."

/* Returns the dtype of a storage class (float32 for FloatStorage, uint8 for untyped storages), or XT_DTYPE_COUNT if it
 * is not a storage class. */
xt_dtype xt_rebuild_storage_dtype(const xt_node *class);

/* Makes space for count storages in advance. Returns false if there is not enough memory. */
bool xt_rebuild_reserve(xt_rebuild *rebuild, size_t count);

/* Adds a storage. `location` is not copied. */
xt_status xt_rebuild_add_storage(xt_rebuild *rebuild, const xt_node *key, const char *location, xt_dtype dtype,
                                 int64_t numel, uint32_t *index);

/* Makes a contiguous tensor of a whole storage, in row-major or column-major (Fortran) order. */
xt_status xt_rebuild_contiguous(xt_rebuild *rebuild, uint32_t storage, xt_dtype dtype, const int64_t *sizes,
                                uint32_t ndim, bool column_major, xt_node **out);

/* Makes a tensor that is a view of a storage. */
xt_status xt_rebuild_view(xt_rebuild *rebuild, const xt_node *storage, int64_t offset, const int64_t *sizes,
                          const int64_t *strides, uint32_t ndim, xt_node **out);

#endif
