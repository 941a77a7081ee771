/* The thread that frees memory. Destructors run on normal schedulers, where a large munmap would stall all processes of
 * that scheduler. So they only push to the reaper's queue, which never blocks and never allocates. */
#ifndef XT_MEMORY_REAPER_H
#define XT_MEMORY_REAPER_H

#include <stdbool.h>
#include <stdint.h>

/* The first member of an object that the reaper can free; `run` frees the whole object. */
typedef struct xt_reapable {
  struct xt_reapable *next;
  void (*run)(struct xt_reapable *self);
} xt_reapable;

/* Starts the thread, once per process. Returns false if the thread could not be created. */
bool xt_reaper_start(void);

void xt_reaper_push(xt_reapable *item);

/* Returns the number of items pushed so far. */
uint64_t xt_reaper_pushed(void);

/* Makes the thread call a function every half second until it returns false. There is one for each of these. */
typedef enum { XT_TICK_BLOCK_CACHE, XT_TICK_ARENA, XT_TICKS } xt_tick;
void xt_reaper_tick(xt_tick tick, bool (*call)(void));

/* Waits until all items that were pushed before the call are freed. Returns false on timeout. */
bool xt_reaper_drain(int timeout_ms);

/* Stops the thread for good after its current item, because the process is exiting. Returns false on timeout. */
bool xt_reaper_halt(int timeout_ms);

#endif
