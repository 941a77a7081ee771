/* A thread that touches fresh memory ahead of whoever fills it. Most of a large load is the kernel clearing pages for
 * the first time, which can be done beside the copying.
 *
 * There is one for the process. It runs only when nobody else wants the core, and nobody waits for it: what it has not
 * touched yet, the reader's own faults back. */
#ifndef XT_PREFAULT_H
#define XT_PREFAULT_H

#include "region.h"

/* Touch these bytes of the region soon; forgotten when there is much to do already, or no thread. The region is
 * counted, so it may be dropped meanwhile. Only ask for what will surely be filled: it takes memory. */
void xt_prefault(xt_region *region, size_t from, size_t to);

/* The region is filled, or given up: it is let go as soon as the thread can, at once where it has not begun. */
void xt_prefault_forget(const xt_region *region);

/* Waits until the thread holds nothing that was forgotten, at most so long. */
void xt_prefault_settle(int timeout_ms);

#endif
