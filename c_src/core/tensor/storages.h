/* The storages of a checkpoint: the runs of elements that its tensors are views of. Pickles name them in persistent
 * ids; safetensors and tar files list them. */
#ifndef XT_TENSOR_STORAGES_H
#define XT_TENSOR_STORAGES_H

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/memory/arena.h"
#include "core/memory/table.h"

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
  bool big_endian;     /* byte order of `data`; of other storages if it differs from that of the file */
  uint8_t alignment;   /* the largest element size of its tensors */
} xt_storage;

typedef struct {
  xt_arena *arena;
  xt_storage *list;
  size_t count, room;
  xt_table by_key;           /* key → index, of the storages that persistent ids name */
  uint64_t max_tensor_bytes; /* limit of one tensor's logical bytes; strides of 0 make them exceed its storage */
} xt_storages;

/* Makes space for `count` storages in advance. Returns false if there is not enough memory. */
bool xt_storages_reserve(xt_storages *storages, size_t count);

/* Adds a storage on the location cpu. `at` is the offset that an error reports. */
xt_status xt_storages_add(xt_storages *storages, const char *key, size_t key_size, xt_dtype dtype, int64_t numel,
                          int64_t at, uint32_t *index, xt_error *error);

/* Returns whether the storage has no data, because its location is the device meta. */
bool xt_storage_is_meta(const xt_storage *storage);

/* Frees the table. The list is in the arena. */
void xt_storages_free(xt_storages *storages);

#endif
