/* Writing checkpoints, in one pass and without seeking back: everything that stands before the payload is known before
 * it, and checksums come after it. Payload bytes go from where they are to the sink; small things are gathered.
 *
 *   xt_saver_begin → xt_saver_step (about so many bytes) until *finished → xt_saver_free
 */
#ifndef XT_CHECKPOINT_SAVER_H
#define XT_CHECKPOINT_SAVER_H

#include "core/base/buffer.h"
#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/checkpoint/checksum.h"

typedef struct {
  xt_status (*write)(void *context, const void *data, size_t size, xt_error *error);
  /* Bytes of a payload that lie where they are until it is done with; NULL: they are written as all others. */
  xt_status (*share)(void *context, size_t payload, const uint8_t *data, size_t size, xt_error *error);
  void *context;
} xt_sink;

/* The bytes of one storage (or of one tensor, in formats that have no storages). */
typedef struct {
  char key[24];
  xt_dtype dtype;
  int64_t numel;
  uint64_t bytes;
  const uint8_t *data; /* NULL: `fetch` brings it when its turn comes */
} xt_payload;

/* A tensor as safetensors names it. */
typedef struct {
  const char *name;
  size_t name_size;
  xt_dtype dtype;
  int ndim;
  const int64_t *sizes;
} xt_named_tensor;

typedef struct xt_saver xt_saver;

/* A format: what stands around the payloads. Each appends to w->out; NULL where there is nothing. */
typedef struct {
  const char *name;
  bool crc; /* `after` wants one */
  void (*begin)(xt_saver *s);
  void (*before)(xt_saver *s, size_t payload);
  void (*after)(xt_saver *s, size_t payload, uint32_t crc);
  void (*end)(xt_saver *s);
} xt_format_writer;

/* "F32"; NULL for dtypes that safetensors does not have. */
const char *xt_safetensors_dtype(xt_dtype dtype);

extern const xt_format_writer xt_zip_write, xt_legacy_write, xt_torch_stream_write, xt_safetensors_write;

struct xt_saver {
  const xt_format_writer *format;
  xt_payload *payloads; /* in the order they are written */
  size_t count;
  const uint8_t *pickle;
  size_t pickle_size;
  const char *root;               /* a zip's root folder */
  const xt_named_tensor *tensors; /* safetensors: as many as payloads, in the same order */
  const xt_buffer *metadata;      /* safetensors: length and text of a key, of its value, of the next key … */
  xt_status (*fetch)(void *context, size_t payload, const uint8_t **data, xt_error *error);
  void (*done)(void *context, size_t payload); /* with what was fetched */
  void *context;
  xt_owner keeper;         /* of what need not be fetched; without one nobody helps with checksums */
  uint64_t total, written; /* payload bytes */

  /* the writer's own */
  int phase;
  size_t next;  /* payload */
  uint64_t at;  /* in it */
  uint32_t crc; /* so far, where there is no: */
  xt_checksum *sum;
  const uint8_t *data;
  bool failed;
  uint64_t flushed;      /* bytes given to the sink */
  xt_buffer out;         /* bytes that wait */
  const void *long_part; /* of them, that is not copied: it stands behind `long_at` bytes of `out` */
  size_t long_size, long_at;
  xt_buffer central;
  uint64_t records;
  uint64_t header; /* where the record at hand begins */
  uint64_t names_hash, crc_hash;
};

/* Fill in what is above first. After an error with `collect` set a step may be tried again; after any other not. */
void xt_saver_begin(xt_saver *s);
xt_status xt_saver_step(xt_saver *s, const xt_sink *sink, uint64_t budget, bool *finished, xt_error *error);
void xt_saver_free(xt_saver *s);

/* Nobody will write on: whoever helps lets go of what it keeps. */
void xt_saver_stop(xt_saver *s);

/* Are the next so many bytes those of a large payload that is in memory, and not its last? */
bool xt_saver_in_payload(const xt_saver *s, uint64_t bytes);

/* For layouts: appends bytes. More than 64 KiB of them are not copied, and stay where they are until they are flushed.
 */
void xt_saver_append(xt_saver *s, const void *data, size_t size);

/* Where the next byte of w->out will stand. */
static inline uint64_t xt_saver_at(const xt_saver *s) { return s->flushed + s->out.size + s->long_size; }

#endif
