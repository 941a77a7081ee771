/* The interface of a format, and the helpers that the formats share while a checkpoint is opened. Each format has its
 * own header, which begins with the layout of the file. */
#ifndef XT_FORMATS_FORMAT_H
#define XT_FORMATS_FORMAT_H

#include "core/checkpoint/checkpoint.h"
#include "core/pickle/scan.h"

struct xt_format {
  const char *name;
  bool at_any_offset; /* the save may start at any offset of the file, for example after another save */
  /* Called again after each need is filled. The first call has c->state 0 and the first bytes in c->head. */
  xt_status (*step)(xt_checkpoint *c, xt_need *need, xt_error *error);
};

xt_status xt_open_no_memory(xt_error *error);

/* Returns zeroed memory that lives as long as the checkpoint, or NULL without memory. */
void *xt_open_alloc(xt_checkpoint *c, size_t size);

/* Allocates a buffer for `size` bytes of the file and sets *need to fill it. The caller has checked that the size does
 * not exceed the file's. */
xt_status xt_open_request(xt_checkpoint *c, uint8_t **buffer, uint64_t offset, uint64_t size, xt_need *need,
                          xt_error *error);

/* A part of the file in memory, which grows or moves while the file is read. */
typedef struct {
  uint8_t *data;
  uint64_t at; /* offset of `data` in the file */
  size_t size, capacity;
  uint64_t pickle;           /* offset of the pickle that is being scanned */
  xt_pickle_scan_state scan; /* progress of that scan */
} xt_window;

/* Returns the n bytes at `offset`. Returns NULL and sets *need if they are not in the window yet; a window that moves
 * reads `ahead` bytes more. Returns NULL and an error in *status if the file is too short. */
const uint8_t *xt_window_get(xt_checkpoint *c, xt_window *window, uint64_t offset, uint64_t n, size_t ahead,
                             xt_need *need, xt_error *error, xt_status *status);

/* Finds the end of the pickle at `offset`. Returns true once the window holds the whole pickle, which has *size bytes.
 * Returns false with a need or an error, as xt_window_get does. */
bool xt_window_scan_pickle(xt_checkpoint *c, xt_window *window, uint64_t offset, size_t *size, xt_need *need,
                           xt_error *error, xt_status *status);

/* Unpickles data that stays allocated as long as the tree. `at` is its offset in the file, or -1 if it is not stored
 * there as is. */
xt_status xt_open_pickle(xt_rebuild *rebuild, const uint8_t *data, size_t size, int64_t at, xt_node **root,
                         xt_error *error);

/* Same as xt_open_pickle for data that contains more after the pickle; sets *used to the length of the pickle. */
xt_status xt_open_first_pickle(xt_rebuild *rebuild, const uint8_t *data, size_t size, int64_t at, size_t *used,
                               xt_node **root, xt_error *error);

/* Called when the tree c->root is complete: finds the record of every storage and builds the index. Formats whose
 * records are not named after the keys of the storages fill c->records before. `more` is a second tree to index, or
 * NULL. */
xt_status xt_open_finish(xt_checkpoint *c, xt_node *more, xt_error *error);

/* Allocates c->records, with no record for any storage. Returns false without memory. */
bool xt_open_reserve_records(xt_checkpoint *c);

#endif
