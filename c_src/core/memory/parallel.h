/* Work that several threads share: the calling thread and helpers, which end before the call returns. */
#ifndef XT_MEMORY_PARALLEL_H
#define XT_MEMORY_PARALLEL_H

#include <stdbool.h>

enum { XT_MAX_THREADS = 64 }; /* for one call */

/* Runs `work` on up to `threads` threads at the same time, one of them the calling thread, and returns when all have
 * returned. There are fewer helpers if the system refuses threads or other calls have many, so the calling thread must
 * be able to do all the work. What helpers allocate counts as allocated by the calling thread (xt_memory_taken).
 *
 * Helpers have the priority of the calling thread: it waits for the last of them, and on a busy machine one of lower
 * priority would keep it waiting. */
void xt_parallel_run(unsigned threads, void (*work)(void *context, bool is_helper), void *context);

/* Returns the number of helpers that are running, of all calls. */
unsigned xt_parallel_helpers(void);

#endif
