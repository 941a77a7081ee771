/* Batch load: reads many storages, each once and in file order, and small neighbors together. The work is done in
 * steps, so that the caller can report progress and stop between them.
 *
 * Several threads read (readers.h). If it is only one and there is a second CPU, the memory of the next large storages
 * is allocated ahead and prefaulted by the background thread. */
#ifndef XT_CHECKPOINT_BATCH_LOAD_H
#define XT_CHECKPOINT_BATCH_LOAD_H

#include "core/checkpoint/record_reader.h"
#include "core/memory/prefault.h"

/* The CRC of a large storage whose pieces are read in any order. */
typedef struct {
  atomic_uint_least64_t left; /* bytes that are not read yet */
  atomic_uint_least32_t crc;
} xt_batch_sum;

typedef struct {
  xt_record_reader reader;
  xt_arena arena;       /* of the arrays below */
  unsigned readers;     /* threads that read; 0 before the first step */
  xt_region **regions;  /* one per storage, complete when the load is finished */
  size_t storages;      /* their number; the checkpoint may be freed before the load */
  uint32_t *order;      /* the storages to read, in file order */
  size_t count;         /* their number */
  xt_batch_sum *sums;   /* as `order`; NULL if nothing is verified */
  uint64_t total, done; /* bytes */
  uint64_t step_end;    /* the step ends when `done` reaches this */
  size_t next;          /* index into `order` of the next storage to read */
  size_t prepared;      /* index into `order` of the first large storage whose memory may not be allocated yet */
  uint64_t ahead;       /* bytes that are allocated ahead and not read yet */
  bool prefaults;       /* the background thread prefaults memory */
  bool failed;
  xt_need need;     /* the range that xt_batch_load_fill expects */
  size_t need_next; /* index into `order` after the storages in that range */
  bool partial;     /* the range ends within a large storage */

  /* the large storage that is partly read between two steps, or a NULL region */
  xt_region *region;
  uint64_t at;  /* bytes read */
  uint32_t crc; /* of these; of a file that the caller reads */
} xt_batch_load;

/* `wanted` has one flag per storage. */
xt_status xt_batch_load_begin(xt_batch_load *load, const xt_record_reader *reader, const bool *wanted, xt_error *error);

/* Reads about `budget` bytes and sets *finished after the last storage. */
xt_status xt_batch_load_step(xt_batch_load *load, uint64_t budget, bool *finished, xt_error *error);

/* For a file that the caller reads: sets *need to the next range of the file, with `to` NULL; its size is 0 only after
 * the last storage. Then xt_batch_load_fill takes the bytes of that range and reads the storages in it. Small ones are
 * copied from `bytes`; one of 2 to 8 MiB that needs no conversion shares it; larger ones are read in pieces of 8 MiB,
 * which are copied into the memory of the storage. */
xt_status xt_batch_load_need(xt_batch_load *load, xt_need *need, xt_error *error);
xt_status xt_batch_load_fill(xt_batch_load *load, xt_region *bytes, xt_error *error);

/* Lists up to `max` ranges that will be needed after the current need, in this order. Returns their number. A range may
 * turn out to be up to 64 KiB longer than what is needed of it, or not to be needed if it is not longer than that. */
size_t xt_batch_load_ahead(const xt_batch_load *load, xt_need *ranges, size_t max);

void xt_batch_load_free(xt_batch_load *load);

#endif
