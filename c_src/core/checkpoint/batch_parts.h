/* What batch_load.c and batch_fill.c share. */
#ifndef XT_CHECKPOINT_BATCH_PARTS_H
#define XT_CHECKPOINT_BATCH_PARTS_H

#include "core/checkpoint/batch_load.h"

enum { XT_BATCH_SLAB = 2 << 20 }; /* maximum size of a slab: small neighbors that are read and freed together */

/* Returns the record of the storage with this index into `order`. */
xt_record *xt_batch_record(const xt_batch_load *load, size_t i);

/* Returns the number of records from `first` on that fit into one slab: neighbors, with a few bytes between them at
 * most. */
size_t xt_batch_slab_length(const xt_batch_load *load, size_t first);

/* Returns true if the record is not compressed and too large for a slab. */
bool xt_batch_is_large(const xt_record *record);

/* Allocates the region of a large storage. */
xt_status xt_batch_allocate(xt_batch_load *load, const xt_record_reader *reader, uint32_t storage, xt_error *error);

/* Reads `count` storages of a file that is in memory, from the one with the index `first` into `order` on. Shares that
 * memory if their bytes can be used as they are. */
xt_status xt_batch_read_memory(xt_batch_load *load, const xt_record_reader *reader, size_t first, size_t count,
                               xt_error *error);

/* Takes over the region of a storage whose bytes are complete, and swaps them if they have another byte order. */
xt_status xt_batch_finish_storage(xt_batch_load *load, const xt_record_reader *reader, uint32_t storage,
                                  xt_region *region, xt_error *error);

#endif
