/* The thread that frees. Destructors run on normal schedulers, where a large munmap would stall every process
 * behind it; so they only push here, which never blocks and never allocates. */
#ifndef XT_MEMORY_REAPER_H
#define XT_MEMORY_REAPER_H

#include <stdbool.h>
#include <stdint.h>

/* Embedded at the start of what is to be freed; `run` frees the whole. */
typedef struct xt_reapable {
  struct xt_reapable *next;
  void (*run)(struct xt_reapable *self);
} xt_reapable;

/* Starts the thread, once per process. False when the system has no thread left. */
bool xt_reaper_start(void);

void xt_reaper_push(xt_reapable *item);

/* How much was pushed since the start. */
uint64_t xt_reaper_pushed(void);

/* Has the thread call this, every half second until it answers false. There is one such function in the process. */
void xt_reaper_tick(bool (*tick)(void));

/* Waits until all that was pushed before the call is freed, at most so long. True when it is. */
bool xt_reaper_drain(int timeout_ms);

/* Lets the thread finish the item it has in hand and then stand still for ever: the process is ending. */
bool xt_reaper_halt(int timeout_ms);

#endif
