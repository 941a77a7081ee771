#include "lease.h"

#include <pthread.h>
#include <stdlib.h>

/* Leases are few and live long: a list will do. */
typedef struct lease {
  struct lease *next;
  const void *address;
  xt_reapable *item;
} lease;

static lease *leases;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool xt_lease_keep(const void *address, xt_reapable *item) {
  lease *one = malloc(sizeof *one);
  if (!one) return false;
  pthread_mutex_lock(&lock);
  *one = (lease){leases, address, item};
  leases = one;
  pthread_mutex_unlock(&lock);
  return true;
}

bool xt_lease_end(const void *address) {
  pthread_mutex_lock(&lock);
  lease **at = &leases;
  while (*at && (*at)->address != address) at = &(*at)->next;
  lease *found = *at;
  if (found) *at = found->next;
  pthread_mutex_unlock(&lock);
  if (!found) return false;
  xt_reaper_push(found->item);
  free(found);
  return true;
}
