/* Push parser: reads a checkpoint forward only, as its bytes arrive from a socket or an upload.
 *
 *   xt_push_begin → xt_push_feed (a chunk) … until XT_PUSH_DONE → xt_push_free
 *
 * Metadata is buffered until it is complete. The bytes of storages are copied from the chunk directly into the memory
 * of the tensors. This works if the object comes before the storages, as in files of torch.save, safetensors and
 * torch.distributed. If the storages come first (TorchScript, C++ archives), the whole stream is spooled, up to a
 * limit, and opened like a file when it is complete.
 *
 * Each format has a step function. It looks at the buffered bytes and either consumes some or requests more.
 */
#ifndef XT_CHECKPOINT_PUSH_H
#define XT_CHECKPOINT_PUSH_H

#include "core/base/buffer.h"
#include "core/checkpoint/batch_load.h"
#include "core/pickle/scan.h"

typedef enum {
  XT_PUSH_MORE,      /* the chunk is used up */
  XT_PUSH_DESCRIBED, /* the tree and the index are complete; the caller may now choose storages */
  XT_PUSH_STORAGE,   /* one storage is complete: `storage` */
  XT_PUSH_DONE       /* all storages are complete and the checkpoint has ended */
} xt_push_event;

typedef struct xt_push xt_push;
typedef xt_status (*xt_push_step)(xt_push *p, xt_error *error);

struct xt_push {
  xt_checkpoint *checkpoint;   /* owned by the caller */
  uint64_t spool_bytes;        /* maximum size of the spool */
  bool (*stop)(void *context); /* called regularly during long steps; true stops with an error; may be NULL */
  void *context;
  bool strict;
  uint64_t at;         /* number of consumed bytes of the stream */
  bool unpacked;       /* the bytes are those of a stream that was unpacked: see xt_push_set_stored */
  uint64_t stored;     /* number of its bytes before that */
  xt_region **regions; /* one per storage, from XT_PUSH_DESCRIBED on */
  bool *wanted;        /* one per storage; the data of the others is skipped */
  bool *completed;     /* one per storage; the caller may have taken the region of a completed one */
  size_t storages;     /* their number */
  uint32_t storage;    /* the storage of the last event, or the one that is being received */
  const char *reading; /* the part that is being read, for the error at an early end of the stream */

  /* for the formats */
  xt_push_step step;
  int state;
  void *work; /* private data of the format */
  void (*free_work)(void *work);
  xt_buffer buffer;          /* the spooled bytes, then those that `step` looks at; its room counts in the budget */
  size_t spooled;            /* number of spooled bytes */
  bool spooling;             /* consumed bytes are spooled */
  size_t needed;             /* number of bytes that the next step needs */
  size_t lookahead;          /* number of bytes that it may get in addition */
  size_t consumed;           /* by the last step */
  xt_pickle_scan_state scan; /* of the current pickle */
  bool light; /* the next steps take only microseconds: there are only headers between storages to parse */
  xt_push_event event;

  /* the storage that is being received */
  bool receiving;
  xt_region *region;
  uint64_t remaining; /* bytes that have not arrived */
  uint32_t crc;
  size_t prefaulted;    /* bytes of its memory that were submitted for prefaulting */
  uint64_t received;    /* bytes of all storages so far */
  uint64_t pending;     /* bytes of the storages that have not begun */
  size_t inline_next;   /* next storage to complete of those whose data is inside the pickle */
  xt_region *spool;     /* the whole stream */
  xt_batch_load loader; /* reads the storages of the spool */
  bool failed;
};

/* The checkpoint must have been initialized by xt_push_begin_checkpoint. */
void xt_push_begin(xt_push *p, xt_checkpoint *checkpoint, uint64_t spool_bytes);

/* Initializes a checkpoint of unknown size. */
void xt_push_begin_checkpoint(xt_checkpoint *c, const xt_limits *limits, bool strict, bool verify, xt_error *error);

/* Says that the stream was unpacked (gzip) before it is fed, and had so many bytes up to here. The allowance then
 * follows from these, because a few bytes can be unpacked to any number. The buffer is part of it, and so is everything
 * that is read and is not the data of a storage. */
void xt_push_set_stored(xt_push *p, uint64_t bytes);

/* Processes a chunk up to the next event and sets *used to the number of bytes that were used. After an error with
 * `collect` set, the rest of the chunk may be fed again. After any other error, the stream cannot be continued. */
xt_status xt_push_feed(xt_push *p, const uint8_t *data, size_t size, size_t *used, xt_push_event *event,
                       xt_error *error);

/* Returns a lower bound of the number of bytes that are still missing. */
uint64_t xt_push_missing(const xt_push *p);

/* Called if the stream has ended before XT_PUSH_DONE. Always returns an error, which describes the position. */
xt_status xt_push_end(xt_push *p, xt_error *error);

/* Must be called before the checkpoint is freed. */
void xt_push_free(xt_push *p);

/* ---- For the formats ---- */

/* The buffered bytes that a step may look at. */
static inline const uint8_t *xt_push_data(const xt_push *p) { return p->buffer.data + p->spooled; }
static inline size_t xt_push_available(const xt_push *p) { return p->buffer.size - p->spooled; }

/* Ends a step: n bytes are consumed, and the next step needs `needed` bytes. */
xt_status xt_push_consume(xt_push *p, size_t n, size_t needed);

/* Ends a step without consuming bytes: the next step needs `needed` bytes and may get up to `lookahead` more. */
xt_status xt_push_request(xt_push *p, size_t needed, size_t lookahead);

/* Finds the end of the pickle at the beginning of the buffer. Returns true and its size once it is complete. Returns
 * false after requesting more bytes, or with an error in *status. */
bool xt_push_scan_pickle(xt_push *p, size_t *size, xt_status *status, xt_error *error);

/* Returns a copy that lives as long as the checkpoint, or NULL without memory. */
uint8_t *xt_push_copy(xt_push *p, const uint8_t *data, size_t size);

/* Raises XT_PUSH_DESCRIBED: the tree and the index of the checkpoint are complete. */
xt_status xt_push_described(xt_push *p, xt_error *error);

/* Ends a step: the next bytes are the data of a storage. The next step is called after they have been received. Returns
 * an error if the stream cannot contain this storage: its data is inside the pickle, or was received before. */
xt_status xt_push_receive(xt_push *p, uint32_t storage, xt_error *error);

/* Raises XT_PUSH_STORAGE with the data of a storage. Takes over the region, also if it returns the error of
 * xt_push_receive. */
xt_status xt_push_complete(xt_push *p, uint32_t storage, xt_region *region, xt_error *error);

/* Opens the spool, whose last n bytes are in the buffer. */
xt_status xt_push_open_spool(xt_push *p, size_t n, xt_error *error);

#endif
