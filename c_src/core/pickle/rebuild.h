/* What the names in a torch pickle mean: storages, tensors, numpy arrays, and the few Python types that have a plain
 * twin. Everything else stays an inert object that names its class. Nothing is imported or called. */
#ifndef XT_PICKLE_REBUILD_H
#define XT_PICKLE_REBUILD_H

#include "core/base/error.h"
#include "core/base/table.h"
#include "core/pickle/node.h"

typedef struct {
  const char *key; /* "0": the record is data/0 */
  size_t key_size;
  const char *location; /* "cpu", "cuda:0" */
  size_t location_size;
  xt_dtype dtype;   /* what it was saved as; uint8 for untyped ones */
  xt_dtype element; /* what its tensors see in it: which bytes turn round in a big-endian file */
  int64_t numel;
  uint64_t bytes;      /* numel × element size */
  const uint8_t *data; /* its bytes, when they lie inside a pickle and not in the file; else NULL */
  bool big_endian;     /* those bytes are */
} xt_storage;

/* What persistent ids are: a storage and its record, the same with views, the key of something known, or nothing. */
typedef enum { XT_IDS_RECORDS, XT_IDS_LEGACY, XT_IDS_LABELS, XT_IDS_NONE } xt_persistent_ids;

typedef struct {
  xt_arena *arena;
  bool strict; /* refuse what torch's weights_only refuses */
  xt_persistent_ids ids;
  const char *folder; /* that storages' keys are to be told apart by; NULL: none */
  xt_storage *storages;
  size_t storage_count, storage_room;
  xt_table by_key;
  xt_table labels;           /* XT_IDS_LABELS: key → node */
  size_t inside;             /* how many saves within this pickle were read */
  bool within;               /* this is one of them */
  size_t allowance;          /* bytes that saves within may have together: those of the pickle */
  uint64_t max_tensor_bytes; /* logical bytes of one tensor: a stride of 0 repeats for free */
  int64_t at;                /* byte offset of the opcode at work, for errors */
  xt_error *error;
} xt_rebuild;

void xt_rebuild_free(xt_rebuild *rebuild);

/* A name: a dtype, or a global; under strict only those that weights_only knows. */
xt_status xt_rebuild_global(xt_rebuild *rebuild, xt_node *global);

/* callable(*args): *out stays NULL when it means nothing special. */
xt_status xt_rebuild_reduce(xt_rebuild *rebuild, xt_node *callable, xt_node *args, xt_node **out);

/* state is set on a value: *done when that means something special, and the value is changed in place. */
xt_status xt_rebuild_build(xt_rebuild *rebuild, xt_node *target, xt_node *state, bool *done);

/* ('storage', class, key, location, numel) */
xt_status xt_rebuild_persistent(xt_rebuild *rebuild, xt_node *id, xt_node **out);

/* FloatStorage → float32 and so on; XT_DTYPE_COUNT when the class is no storage. Untyped ones count bytes. */
xt_dtype xt_rebuild_storage_dtype(const xt_node *class);

/* Room for so many storages; false when there is no memory. It grows by itself. */
bool xt_rebuild_reserve(xt_rebuild *rebuild, size_t count);

/* A storage that no persistent id named. `location` is not copied. */
xt_status xt_rebuild_add_storage(xt_rebuild *rebuild, const xt_node *key, const char *location, xt_dtype dtype,
                                 int64_t numel, uint32_t *index);

/* A tensor of a whole storage, the last dimension innermost, or the first (Fortran's order). */
xt_status xt_rebuild_contiguous(xt_rebuild *rebuild, uint32_t storage, xt_dtype dtype, const int64_t *sizes,
                                uint32_t ndim, bool first_innermost, xt_node **out);

/* A tensor of part of a storage. */
xt_status xt_rebuild_view(xt_rebuild *rebuild, const xt_node *storage, int64_t offset, const int64_t *sizes,
                          const int64_t *strides, uint32_t ndim, xt_node **out);

#endif
