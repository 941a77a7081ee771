#include "core/memory/lease.h"

#include <pthread.h>
#include <stdlib.h>

/* There are few leases and they live long, so a list is fast enough. */
typedef struct lease {
  struct lease *next;
  const void *address;
  void *object;
} lease;

static lease *leases;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool xt_lease_keep(const void *address, void *object) {
  lease *added = malloc(sizeof *added);
  if (!added) return false;
  pthread_mutex_lock(&lock);
  *added = (lease){leases, address, object};
  leases = added;
  pthread_mutex_unlock(&lock);
  return true;
}

void *xt_lease_release(const void *address) {
  pthread_mutex_lock(&lock);
  lease **at = &leases;
  while (*at && (*at)->address != address) at = &(*at)->next;
  lease *found = *at;
  if (found) *at = found->next;
  pthread_mutex_unlock(&lock);
  if (!found) return NULL;
  void *object = found->object;
  free(found);
  return object;
}
