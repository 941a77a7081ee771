#include "core/memory/lease.h"

#include <stdlib.h>

#include "core/os/thread.h"

/* There are few leases and they live long, so a list is fast enough. */
typedef struct lease {
  struct lease *next;
  const void *address;
  void *object;
} lease;

static lease *leases;
static xt_mutex lock = XT_MUTEX_INIT;

bool xt_lease_keep(const void *address, void *object) {
  lease *added = malloc(sizeof *added);
  if (!added) return false;
  xt_mutex_lock(&lock);
  *added = (lease){leases, address, object};
  leases = added;
  xt_mutex_unlock(&lock);
  return true;
}

void *xt_lease_release(const void *address) {
  xt_mutex_lock(&lock);
  lease **at = &leases;
  while (*at && (*at)->address != address) at = &(*at)->next;
  lease *found = *at;
  if (found) *at = found->next;
  xt_mutex_unlock(&lock);
  if (!found) return NULL;
  void *object = found->object;
  free(found);
  return object;
}
