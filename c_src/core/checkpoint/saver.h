/* Saver: writes a checkpoint in one pass, without seeking back. Everything before a payload is known before it is
 * written, and checksums come after it. Payloads are written from where they are; small parts are gathered in a buffer.
 *
 *   xt_saver_begin → xt_saver_step until *finished → xt_saver_free
 */
#ifndef XT_CHECKPOINT_SAVER_H
#define XT_CHECKPOINT_SAVER_H

#include "core/base/buffer.h"
#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/checkpoint/checksum.h"

typedef struct {
  xt_status (*write)(void *context, const void *data, size_t size, xt_error *error);
  /* Takes bytes of a payload without copying them. They stay in place until the payload is done. If NULL, payloads are
   * passed to `write` as well. */
  xt_status (*share)(void *context, size_t payload, const uint8_t *data, size_t size, xt_error *error);
  void *context;
} xt_sink;

/* The data of one storage, or of one tensor in formats without storages. */
typedef struct {
  char key[24];
  xt_dtype dtype;
  int64_t numel;
  uint64_t bytes;
  const uint8_t *data; /* NULL if `fetch` provides it when the payload is about to be written */
} xt_payload;

/* A tensor of a safetensors file. */
typedef struct {
  const char *name;
  size_t name_size;
  xt_dtype dtype;
  int ndim;
  const int64_t *sizes;
} xt_named_tensor;

typedef struct xt_saver xt_saver;

/* Writes the parts of a format around the payloads. Each function appends to s->out; all but `begin` may be NULL. */
typedef struct {
  const char *name;
  bool crc; /* `after` needs the CRC of the payload */
  void (*begin)(xt_saver *s);
  void (*before)(xt_saver *s, size_t payload);
  void (*after)(xt_saver *s, size_t payload, uint32_t crc);
  void (*end)(xt_saver *s);
} xt_format_writer;

struct xt_saver {
  /* set by the caller */
  const xt_format_writer *format;
  xt_payload *payloads; /* in the order in which they are written */
  size_t count;
  const uint8_t *pickle;
  size_t pickle_size;
  const char *root;               /* root directory of a zip file */
  const xt_named_tensor *tensors; /* safetensors: one per payload, in the same order */
  const xt_buffer *metadata;      /* safetensors: keys and values in turn, each as a size_t and the text */
  xt_status (*fetch)(void *context, size_t payload, const uint8_t **data, xt_error *error);
  void (*done)(void *context, size_t payload); /* releases what `fetch` has provided */
  void *context;
  xt_owner keeper; /* of the payloads that need no `fetch`; without one, the background thread computes no checksums */

  uint64_t total, written; /* payload bytes */

  /* private */
  int phase;
  size_t next;      /* current payload */
  uint64_t at;      /* bytes of it that are written */
  uint32_t crc;     /* of these bytes, if `sum` is NULL */
  xt_checksum *sum; /* of the current payload, if the background thread helps */
  const uint8_t *data;
  bool failed;
  uint64_t flushed;     /* bytes passed to the sink */
  xt_buffer out;        /* bytes to be flushed */
  const void *borrowed; /* bytes to be flushed that are not copied; they belong at position `borrowed_at` of `out` */
  size_t borrowed_size, borrowed_at;

  /* zip */
  xt_buffer central; /* the central directory so far */
  uint64_t records;  /* number of entries in it */
  uint64_t header;   /* offset of the current record */
  uint64_t names_hash, crc_hash;
};

/* The public fields must be set before. After an error with `collect` set, the step may be repeated. After any other
 * error, the save has failed. */
void xt_saver_begin(xt_saver *s);

/* Writes about `budget` bytes. */
xt_status xt_saver_step(xt_saver *s, const xt_sink *sink, uint64_t budget, bool *finished, xt_error *error);
void xt_saver_free(xt_saver *s);

/* Stops the background thread's work on the current payload, so that it releases its reference to the keeper. */
void xt_saver_stop(xt_saver *s);

/* Returns true if the next `bytes` bytes all belong to one large payload that is in memory, and do not complete it. */
bool xt_saver_in_payload(const xt_saver *s, uint64_t bytes);

/* ---- For the formats ---- */

/* Appends bytes to the output. More than 64 KiB are not copied: they must stay in place until they are flushed. */
void xt_saver_append(xt_saver *s, const void *data, size_t size);

/* Returns the file offset of the next byte of the output. */
static inline uint64_t xt_saver_at(const xt_saver *s) { return s->flushed + s->out.size + s->borrowed_size; }

#endif
