#include "core/memory/lease.h"

#include <stdlib.h>

#include "core/os/thread.h"

/* There are few leases and they live long, so a list is fast enough. */
typedef struct lease {
  struct lease *next;
  void *object;
} lease;

static lease *leases;
static xt_mutex lock = XT_MUTEX_INIT;

bool xt_lease_keep(void *object) {
  lease *added = malloc(sizeof *added);
  if (!added) return false;
  xt_mutex_lock(&lock);
  *added = (lease){leases, object};
  leases = added;
  xt_mutex_unlock(&lock);
  return true;
}

static lease **find(xt_lease_visit *visit, void *context) {
  lease **at = &leases;
  while (*at && !visit((*at)->object, context)) at = &(*at)->next;
  return at;
}

void *xt_lease_find(xt_lease_visit *visit, void *context) {
  xt_mutex_lock(&lock);
  const lease *found = *find(visit, context);
  void *object = found ? found->object : NULL;
  xt_mutex_unlock(&lock);
  return object;
}

void *xt_lease_release(xt_lease_visit *visit, void *context) {
  xt_mutex_lock(&lock);
  lease **at = find(visit, context);
  lease *found = *at;
  if (found) *at = found->next;
  xt_mutex_unlock(&lock);
  if (!found) return NULL;
  void *object = found->object;
  free(found);
  return object;
}
