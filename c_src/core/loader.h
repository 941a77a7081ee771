/* Loading many storages: each is read once, in file order, small neighbours together; in steps, so that the caller can
 * report progress and be stopped between them.
 *
 * Where there are cores to spare two threads read: the caller's, and a helper that lives for a step. Most of the time
 * goes into clearing fresh pages, which the kernel does on the thread that touches them.
 */
#ifndef XT_LOADER_H
#define XT_LOADER_H

#include <pthread.h>

#include "reader.h"

enum { XT_LOADER_WORKERS = 2 };

/* A thread's own state: the large storage that it has in hand between two steps. */
typedef struct {
  xt_region *region;
  uint32_t storage;
  uint64_t at;
  uint32_t crc;
} xt_loader_worker;

typedef struct {
  xt_reader reader;
  xt_region **regions; /* of each storage; filled when the loader is done */
  size_t storages;     /* how many: the checkpoint may be gone when the loader is freed */
  uint32_t *order;     /* storages to read, by their place in the file */
  size_t count;
  uint64_t total; /* bytes */

  pthread_mutex_t lock; /* guards what follows */
  size_t next;          /* in order: what nobody has taken yet */
  uint64_t done;        /* bytes */
  uint64_t stop_at;     /* the step's budget is used up then */
  bool failed;          /* a worker did; the others stop */
  xt_loader_worker workers[XT_LOADER_WORKERS];
} xt_loader;

/* `wanted` has a flag for each storage. */
xt_status xt_loader_begin(xt_loader *loader, const xt_reader *reader, const bool *wanted, xt_error *error);

/* Reads about so many bytes more; *finished when there is nothing left. */
xt_status xt_loader_step(xt_loader *loader, uint64_t budget, bool *finished, xt_error *error);

/* A tensor over its storage's region. The caller drops the view's region. */
void xt_loader_view(const xt_loader *loader, const xt_node_tensor *tensor, xt_view *out);

void xt_loader_free(xt_loader *loader);

#endif
