/* Saver: writes a checkpoint in one pass, without seeking back. Everything before a payload is known before it is
 * written, and checksums come after it. Payloads are written from where they are; small parts are gathered in a buffer.
 *
 *   xt_saver_begin → xt_saver_step until *finished → xt_saver_free
 */
#ifndef XT_CHECKPOINT_SAVER_H
#define XT_CHECKPOINT_SAVER_H

#include "core/checkpoint/checksum.h"
#include "core/checkpoint/save_plan.h"

/* Where the bytes of one step go. */
typedef struct {
  xt_status (*write)(void *context, const void *data, size_t size, xt_error *error);
  /* Takes bytes of a payload without copying them. They stay in place until the payload is done. Called once in a step
   * for all bytes of a payload, or of a part of it that was fetched. If NULL, payloads are passed to `write` as well.
   */
  xt_status (*share)(void *context, size_t payload, const uint8_t *data, size_t size, xt_error *error);
  bool (*stop)(void *context); /* called for 1 to 4 MiB of payload; true stops with an error; may be NULL */
  void *context;
} xt_sink;

typedef struct xt_saver {
  /* set by the caller */
  const xt_save_plan *plan;
  /* Provides the bytes of a payload from `from` on: all of them, or a part. */
  xt_status (*fetch)(void *context, size_t payload, uint64_t from, const uint8_t **data, uint64_t *size,
                     xt_error *error);
  void (*done)(void *context, size_t payload); /* releases what `fetch` has provided; called before the next one */
  void *context;
  xt_owner keeper; /* of the payloads that need no `fetch`; without one, the background thread computes no checksums */

  uint64_t total, written; /* payload bytes */

  /* private */
  int phase;
  size_t next;      /* current payload */
  uint64_t at;      /* bytes of it that are written */
  uint64_t asked;   /* bytes that were written when `stop` was asked last */
  uint32_t crc;     /* of these bytes, if `sum` is NULL */
  xt_checksum *sum; /* of the current payload, if the background thread helps */
  bool begun;       /* what precedes the payload is written */
  const uint8_t *data;
  uint64_t data_at, data_end; /* which bytes of the payload are at `data` */
  bool failed;
  uint64_t flushed;     /* bytes passed to the sink */
  xt_buffer out;        /* bytes to be flushed */
  xt_arena arena;       /* may have the memory of `out` */
  const void *borrowed; /* bytes to be flushed that are not copied; they belong at position `borrowed_at` of `out` */
  size_t borrowed_size, borrowed_at;

  /* zip */
  xt_buffer central;   /* the central directory so far */
  uint64_t records;    /* number of entries in it */
  uint64_t header;     /* offset of the current record */
  size_t prefix_size;  /* npz: of the array's header, which precedes the payload in the record */
  uint32_t prefix_crc; /* of it */
  uint64_t names_hash, crc_hash;
} xt_saver;

/* The public fields must be set before. After an error with `collect` set, the step may be repeated. After any other
 * error, the save has failed. */
void xt_saver_begin(xt_saver *s);

/* Writes about `budget` bytes. The last step fails if the mapped file of a payload was truncated in the meantime. */
xt_status xt_saver_step(xt_saver *s, const xt_sink *sink, uint64_t budget, bool *finished, xt_error *error);
void xt_saver_free(xt_saver *s);

/* Stops the background thread's work on the current payload, so that it releases its reference to the keeper. */
void xt_saver_stop(xt_saver *s);

/* Returns true if a step of `bytes` bytes that shares payloads computes at most a checksum: the bytes belong to one
 * payload that is in memory, and do not complete it. */
bool xt_saver_is_brief(const xt_saver *s, uint64_t bytes);

/* ---- For the formats ---- */

/* Appends bytes to the output. More than 64 KiB are not copied: they must stay in place until they are flushed. */
void xt_saver_append(xt_saver *s, const void *data, size_t size);

/* Returns the file offset of the next byte of the output. */
static inline uint64_t xt_saver_at(const xt_saver *s) { return s->flushed + s->out.size + s->borrowed_size; }

#endif
