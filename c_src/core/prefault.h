/* A thread that touches fresh memory ahead of the reader. Most of a large load is the kernel clearing pages for the
 * first time, which can be done beside the copying.
 *
 * It runs only when nobody else wants the core, and nobody waits for it: what it has not touched yet, the reader's own
 * faults back. Regions are counted, so they may be dropped while it still has them in hand. */
#ifndef XT_PREFAULT_H
#define XT_PREFAULT_H

#include "region.h"

typedef struct xt_prefault xt_prefault;

/* NULL when the system has no thread left. */
xt_prefault *xt_prefault_start(void);

/* Touch this one soon; forgotten when there is much to do already. NULL is fine. */
void xt_prefault_add(xt_prefault *prefault, xt_region *region);

/* Ends soon, without being waited for. NULL is fine. */
void xt_prefault_stop(xt_prefault *prefault);

#endif
