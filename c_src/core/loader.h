/* Loading many storages: each is read once, in file order, small neighbours together; in steps, so that the caller can
 * report progress and be stopped between them. */
#ifndef XT_LOADER_H
#define XT_LOADER_H

#include "reader.h"

typedef struct {
  xt_reader reader;
  xt_region **regions; /* of each storage; filled when the loader is done */
  size_t storages;     /* how many: the checkpoint may be gone when the loader is freed */
  uint32_t *order;     /* storages to read, by their place in the file */
  size_t count, next;
  xt_region *current; /* a large storage, partly read */
  uint64_t current_at;
  uint32_t crc;
  uint64_t done, total; /* bytes */
} xt_loader;

/* `wanted` has a flag for each storage. */
xt_status xt_loader_begin(xt_loader *loader, const xt_reader *reader, const bool *wanted, xt_error *error);

/* Reads about so many bytes more; *finished when there is nothing left. */
xt_status xt_loader_step(xt_loader *loader, uint64_t budget, bool *finished, xt_error *error);

/* A tensor over its storage's region. The caller drops the view's region. */
void xt_loader_view(const xt_loader *loader, const xt_node_tensor *tensor, xt_view *out);

void xt_loader_free(xt_loader *loader);

#endif
