/* The state of opening a checkpoint, and what the formats share while they open one. */
#ifndef XT_CHECKPOINT_OPENING_H
#define XT_CHECKPOINT_OPENING_H

#include "core/checkpoint/checkpoint.h"
#include "core/pickle/rebuild.h"
#include "core/pickle/scan.h"

struct xt_opening {
  xt_checkpoint *checkpoint;
  xt_limits limits;
  bool verify;        /* also check the CRC of records that are read while opening */
  bool size_unknown;  /* the checkpoint is a stream: file_size is only an upper bound */
  xt_rebuild rebuild; /* of the checkpoint's object */
  uint8_t *head;      /* the first bytes of the save */
  size_t head_size;
  int state;  /* of the format */
  void *work; /* private data of the format */
};

/* Returns NULL without memory. */
xt_opening *xt_opening_new(xt_checkpoint *c, const xt_limits *limits, bool strict, bool verify);

/* Frees the opening state of a checkpoint, if there is any. */
void xt_opening_free(xt_checkpoint *c);

/* Frees the state of the format and forgets the format: the file is opened from the beginning. */
void xt_opening_restart(xt_opening *o);

/* Sets how many bytes of the file are known to exist, from which the allowance follows. */
void xt_opening_set_present(xt_opening *o, uint64_t bytes);

/* Lowers the allowance to that of so many bytes. */
void xt_opening_limit_present(xt_opening *o, uint64_t bytes);

xt_status xt_opening_no_memory(xt_error *error);

/* Allocates a buffer for `size` bytes of the file and sets *need to fill it. The buffer lives as long as the
 * checkpoint. The caller has checked that the size does not exceed the file's. */
xt_status xt_opening_request(xt_opening *o, uint8_t **buffer, uint64_t offset, uint64_t size, xt_need *need,
                             xt_error *error);

/* ---- Windows ---- */

/* A part of the file in memory, which grows or moves while the file is read. */
typedef struct {
  uint8_t *data;
  uint64_t at; /* offset of `data` in the file */
  size_t size, capacity;
  size_t slot;               /* 1 + index of `data` in the checkpoint's buffers; 0 if there is none yet */
  uint64_t pickle;           /* offset of the pickle that is being scanned */
  xt_pickle_scan_state scan; /* progress of that scan */
} xt_window;

/* Whether the window has the n bytes at `offset`. */
bool xt_window_has(const xt_window *window, uint64_t offset, uint64_t n);

/* Returns the n bytes at `offset`. Returns NULL and sets *need if they are not in the window yet; a window that moves
 * reads `ahead` bytes more. Returns NULL and an error in *status if the file is too short. */
const uint8_t *xt_window_get(xt_opening *o, xt_window *window, uint64_t offset, uint64_t n, size_t ahead, xt_need *need,
                             xt_error *error, xt_status *status);

/* Finds the end of the pickle at `offset`. Returns true once the window holds the whole pickle, which has *size bytes.
 * Returns false with a need or an error, as xt_window_get does. */
bool xt_window_scan_pickle(xt_opening *o, xt_window *window, uint64_t offset, size_t *size, xt_need *need,
                           xt_error *error, xt_status *status);

/* ---- The tree ---- */

/* Unpickles the checkpoint's object, or a part of it, from data that stays allocated as long as the tree. `at` is its
 * offset in the file, or -1 if it is not stored there as is. */
xt_status xt_opening_pickle(xt_opening *o, const uint8_t *data, size_t size, int64_t at, xt_node **root,
                            xt_error *error);

/* Unpickles a value that belongs to the format, from data that may contain more after the pickle. Sets *used, unless it
 * is NULL, to the length of the pickle. */
xt_status xt_opening_value(xt_opening *o, bool strict, const uint8_t *data, size_t size, int64_t at, size_t *used,
                           xt_node **value, xt_error *error);

/* Allocates checkpoint->records, with no record for any storage. Returns false without memory. */
bool xt_opening_reserve_records(xt_opening *o);

/* Called when the tree and the records of its storages are complete: builds the index. `more` is a second tree to
 * index, or NULL. */
xt_status xt_opening_finish(xt_opening *o, xt_node *more, xt_error *error);

#endif
