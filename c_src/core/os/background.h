/* What makes calls faster without being needed: a thread for work done ahead of time, and memory that is kept for a
 * moment. Each use can be turned off (`config :extorch, background: …`). bench/background.exs measures what each gains,
 * on two cores:
 *
 *   prefault      pages of a large load by one thread are touched before they are read into: a load of 2 GB takes 10 to
 *                 20 % less, a stream 10 to 15 %
 *   checksum      the CRC of a large payload is computed before it is written: a save of 2 GB takes 25 to 30 % less
 *   block_cache   blocks of 2 to 32 MiB are used again: reading such tensors one by one takes 30 to 50 % less
 *
 * The thread: callers do the work themselves if the thread has not done it yet, and never wait for it.
 *
 * There is one such thread per process. It runs at SCHED_IDLE, so it may be suspended at any point for as long as other
 * threads are busy. Systems other than Linux 6.4 and newer have no such thread. */
#ifndef XT_OS_BACKGROUND_H
#define XT_OS_BACKGROUND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define XT_BACKGROUND_USES(X) X(prefault) X(checksum) X(block_cache)

#define XT_BACKGROUND_USE(name) XT_BACKGROUND_##name,
typedef enum { XT_BACKGROUND_USES(XT_BACKGROUND_USE) XT_BACKGROUND_COUNT } xt_background_use;
#undef XT_BACKGROUND_USE

/* All uses are on at first. */
bool xt_background_enabled(xt_background_use use);
void xt_background_enable(xt_background_use use, bool on);

/* `run` works on bytes [from, to) of the subject until it is done or `cancelled` is set, and calls xt_background_pause
 * between two pieces. `drop` releases the subject. */
typedef struct {
  void (*run)(void *subject, size_t from, size_t to, const atomic_bool *cancelled);
  void (*drop)(void *subject);
  void *subject;
  size_t from, to;
} xt_background_job;

/* Queues a job. Returns false if the queue is full or there is no thread; the caller then has to drop the subject. */
bool xt_background_submit(xt_background_job job);

/* Cancels all jobs of the subject. Jobs are dropped at once, except one that is running: it ends after its current
 * piece. */
void xt_background_cancel(const void *subject);

/* Waits until the thread runs no cancelled job, but not longer than the timeout. */
void xt_background_settle(int timeout_ms);

/* Called by `run`: sleeps for the given time, which must be less than a second, or only yields the CPU if it is 0.
 * Returns false if the job was cancelled in the meantime; its subject has then been dropped.
 *
 * Without the yield, a scheduler of the VM that calls sched_yield while looking for work would get its CPU back only at
 * the kernel's next tick. The sleeps are needed because timers of all processes fire late when all CPUs are busy,
 * especially on virtual machines. */
bool xt_background_pause(int microseconds);

#endif
