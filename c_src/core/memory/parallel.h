/* Work that several threads share: the calling thread and helpers, which end before the call returns. */
#ifndef XT_MEMORY_PARALLEL_H
#define XT_MEMORY_PARALLEL_H

#include <stdbool.h>

enum { XT_MAX_THREADS = 64 }; /* for one call */

/* Runs `work` on up to `threads` threads at the same time, one of them the calling thread, and returns when all have
 * returned. There are fewer helpers if the system refuses threads or other calls have many, so the calling thread must
 * be able to do all the work. Helpers have a lower priority than the calling thread. What they allocate counts as
 * allocated by it (xt_memory_taken). */
void xt_parallel_run(unsigned threads, void (*work)(void *context, bool is_helper), void *context);

/* Returns the number of helpers that are running, of all calls. */
unsigned xt_parallel_helpers(void);

#endif
