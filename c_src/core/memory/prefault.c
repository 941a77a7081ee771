#include "core/memory/prefault.h"

#include "core/os/background.h"

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, PAUSE_US = 100 };

/* Touches a page with an atomic OR of 0, which does not change a byte that the reader may store there at the same time.
 * Unlike madvise, an ordinary page fault is short and holds no lock of the whole address space. */
static void touch(void *subject, size_t from, size_t to, const atomic_bool *cancelled) {
  uintptr_t data = (uintptr_t)((xt_region *)subject)->data;
  for (uintptr_t at = data + from; at < data + to && !atomic_load_explicit(cancelled, memory_order_relaxed);) {
    __atomic_fetch_or((unsigned char *)at, 0, __ATOMIC_RELAXED);
    at = (at & ~(uintptr_t)(PAGE - 1)) + PAGE;
    if (at % HUGE_PAGE == 0 && !xt_background_pause(PAUSE_US)) return;
  }
}

/* The reaper frees the region: at SCHED_IDLE that could take very long. */
static void drop(void *subject) { xt_region_drop_later(subject); }

void xt_prefault(xt_region *region, size_t from, size_t to) {
  if (!xt_background_enabled(XT_BACKGROUND_prefault)) return;
  if (!xt_background_submit((xt_background_job){touch, drop, xt_region_keep(region), from, to})) drop(region);
}

void xt_prefault_cancel(const xt_region *region) { xt_background_cancel(region); }
