/* What the names in a torch pickle mean: storages, tensors, and the few Python types that have a plain twin. Everything
 * else stays an inert object that names its class. Nothing is imported or called. */
#ifndef XT_MEANING_H
#define XT_MEANING_H

#include "error.h"
#include "node.h"
#include "table.h"

typedef struct {
  const char *key; /* "0": the record is data/0 */
  size_t key_size;
  const char *location; /* "cpu", "cuda:0" */
  size_t location_size;
  xt_dtype dtype;   /* what it was saved as; uint8 for untyped ones */
  xt_dtype element; /* what its tensors see in it: which bytes turn round in a big-endian file */
  int64_t numel;
  uint64_t bytes; /* numel × element size */
} xt_storage;

typedef struct {
  xt_arena *arena;
  bool strict; /* refuse what torch's weights_only refuses */
  xt_storage *storages;
  size_t storage_count, storage_room;
  xt_table by_key;
  uint64_t max_tensor_bytes; /* logical bytes of one tensor: a stride of 0 repeats for free */
  int64_t at;                /* byte offset of the opcode at work, for errors */
  xt_error *error;
} xt_meaning;

void xt_meaning_free(xt_meaning *meaning);

/* A name: a dtype, or a global; under strict only those that weights_only knows. */
xt_status xt_meaning_global(xt_meaning *meaning, xt_node *global);

/* callable(*args): *out stays NULL when it means nothing special. */
xt_status xt_meaning_reduce(xt_meaning *meaning, const xt_node *callable, xt_node *args, xt_node **out);

/* ('storage', class, key, location, numel) */
xt_status xt_meaning_persistent(xt_meaning *meaning, const xt_node *id, xt_node **out);

#endif
