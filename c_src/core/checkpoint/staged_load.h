/* Staged load: reads parts of storages, in file order, into buffers that are passed on while the next one is filled. It
 * never waits for a buffer: it says that there is none, and the caller comes back later.
 *
 *   xt_staged_load_begin → xt_staged_load_step until *state is FINISHED
 *   xt_staged_load_begin → xt_staged_load_fill until *state is FINISHED, for a file that the caller reads
 */
#ifndef XT_CHECKPOINT_STAGED_LOAD_H
#define XT_CHECKPOINT_STAGED_LOAD_H

#include "core/checkpoint/record_reader.h"

enum { XT_STAGE_BYTES = 4 << 20 }; /* the size of a buffer */

/* Bytes of a storage, or of memory that stays valid. */
typedef struct {
  size_t id; /* the caller's number of it */
  uint32_t storage;
  uint32_t queue;        /* number of the queue of buffers that it is passed to */
  uint64_t from, size;   /* in bytes; a part of a storage only if that is stored as it is, and not verified */
  const uint8_t *memory; /* read instead of a storage, unless it is NULL */
} xt_staged_unit;

/* Where the bytes go. */
typedef struct {
  void *context;
  /* Sets *buffer to the next buffer of a queue, of XT_STAGE_BYTES bytes, or to NULL if none is free. */
  xt_status (*take)(void *context, uint32_t queue, uint8_t **buffer, xt_error *error);
  /* Passes on bytes of this buffer from `from` on: those of a unit from `at` on. */
  xt_status (*put)(void *context, size_t id, size_t from, uint64_t at, size_t size, xt_error *error);
  /* Ends the use of this buffer. */
  xt_status (*pass)(void *context, uint32_t queue, xt_error *error);
} xt_stage_sink;

typedef enum { XT_STAGED_MORE, XT_STAGED_WAITING, XT_STAGED_FINISHED } xt_staged_state;

typedef struct {
  xt_record_reader reader;
  xt_stage_sink sink;
  xt_staged_unit *units; /* in file order; freed with the load */
  size_t count;
  uint64_t total, done; /* bytes */
  size_t next;          /* the current unit */
  uint64_t at;          /* bytes of it that were passed on */
  uint32_t crc;         /* of these */
  xt_region *whole;     /* its content, if it is compressed */
  xt_need need;         /* the range that xt_staged_load_fill expects */
  bool failed;
} xt_staged_load;

/* Takes over the units, which come from malloc, also on failure, and sorts them by their place in the file. */
xt_status xt_staged_load_begin(xt_staged_load *load, const xt_record_reader *reader, const xt_stage_sink *sink,
                               xt_staged_unit *units, size_t count, xt_error *error);

/* Reads about `budget` bytes. */
xt_status xt_staged_load_step(xt_staged_load *load, uint64_t budget, xt_staged_state *state, xt_error *error);

/* For a file that the caller reads: `bytes` are those of the last need, or NULL. MORE: reads the need, which is not
 * empty, and calls again with its bytes. WAITING: calls again with the same bytes if *again, else with NULL. */
xt_status xt_staged_load_fill(xt_staged_load *load, xt_region *bytes, xt_staged_state *state, bool *again,
                              xt_error *error);

/* Lists the ranges that follow the need; at most `max`. Returns their number. */
size_t xt_staged_load_ahead(const xt_staged_load *load, xt_need *ranges, size_t max);

void xt_staged_load_free(xt_staged_load *load);

#endif
