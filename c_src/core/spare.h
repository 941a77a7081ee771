/* Large blocks that were just freed, kept for a moment: who needs such a block next does not wait for the kernel to
 * clear fresh pages, which takes longer than to fill them.
 *
 * They are few, and they go before fresh memory is taken: spare blocks never come on top of what a block that does not
 * fit them takes. */
#ifndef XT_SPARE_H
#define XT_SPARE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
  void *map; /* the mapping, and where in it the data begins */
  size_t map_size;
  char *data;
} xt_block;

/* Keeps the block; false when it is too large. The oldest go when there are too many. */
bool xt_spare_put(xt_block block);

/* A block for so many bytes of data. False when there is none; then there is no spare block left at all. */
bool xt_spare_take(size_t size, xt_block *out);

/* Gives back the blocks that were here at the last call already. True while some are left. */
bool xt_spare_age(void);

/* Gives a block back to the system, in slices: one large munmap stalls every mmap of the process. */
void xt_block_free(xt_block block);

#endif
