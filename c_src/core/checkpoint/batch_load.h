/* Loading many storages: each is read once, in file order, small neighbours together; in steps, so that the caller can
 * report progress and be stopped between them.
 *
 * The caller's thread reads. Where there is a core to spare, the memory of the next large storages is taken a little
 * earlier and touched by another thread.
 */
#ifndef XT_CHECKPOINT_BATCH_LOAD_H
#define XT_CHECKPOINT_BATCH_LOAD_H

#include "core/checkpoint/record_reader.h"
#include "core/memory/prefault.h"

typedef struct {
  xt_record_reader reader;
  xt_region **regions; /* of each storage; filled when the loader is done */
  size_t storages;     /* how many: the checkpoint may be gone when the loader is freed */
  uint32_t *order;     /* storages to read, by their place in the file */
  size_t count;
  uint64_t total, done; /* bytes */
  size_t next;          /* in order: what is to be read now */
  size_t prepared;      /* in order: from here on large storages have no memory yet */
  uint64_t ahead;       /* bytes that are prepared and not yet begun */
  bool helped;          /* by another thread, which touches memory ahead */
  bool failed;

  /* the large storage that is in hand between two steps */
  xt_region *region;
  uint64_t at;
  uint32_t crc;
} xt_batch_load;

/* `wanted` has a flag for each storage. */
xt_status xt_batch_load_begin(xt_batch_load *load, const xt_record_reader *reader, const bool *wanted, xt_error *error);

/* Reads about so many bytes more; *finished when there is nothing left. */
xt_status xt_batch_load_step(xt_batch_load *load, uint64_t budget, bool *finished, xt_error *error);

void xt_batch_load_free(xt_batch_load *load);

#endif
