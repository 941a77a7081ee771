/* Push parser: reads a checkpoint forward only, as its bytes arrive from a socket or an upload. This is the part that
 * the formats use; formats/feed.h has the functions that feed it.
 *
 * Metadata is buffered until it is complete. The bytes of storages are copied from the chunk directly into the memory
 * of the tensors. This works if the object comes before the storages, as in files of torch.save, safetensors and
 * torch.distributed. If the storages come first (TorchScript, C++ archives), the whole stream is spooled, up to a
 * limit, and opened like a file when it is complete.
 *
 * The step function of a format looks at the buffered bytes and either consumes some or requests more.
 */
#ifndef XT_CHECKPOINT_PUSH_H
#define XT_CHECKPOINT_PUSH_H

#include "core/base/buffer.h"
#include "core/checkpoint/batch_load.h"
#include "core/memory/slab.h"
#include "core/pickle/scan.h"

typedef enum {
  XT_PUSH_MORE,      /* the chunk is used up */
  XT_PUSH_DESCRIBED, /* the tree and the index are complete; the caller may now choose storages */
  XT_PUSH_STORAGE,   /* one storage is complete: `storage` */
  XT_PUSH_DONE       /* all storages are complete and the checkpoint has ended */
} xt_push_event;

typedef struct xt_push xt_push;

/* The part of a format that reads streams. */
typedef struct {
  size_t work_size; /* size of xt_push.work, which is zeroed at first */
  xt_status (*step)(xt_push *p, xt_error *error);
  void (*free_work)(void *work); /* frees what `work` points to; may be NULL */
} xt_push_parser;

struct xt_push {
  xt_checkpoint *checkpoint;   /* owned by the caller */
  uint64_t spool_bytes;        /* maximum size of the spool */
  bool (*stop)(void *context); /* called regularly during long steps; true stops with an error; may be NULL */
  void *context;
  bool strict, verify;
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
  const xt_format *format; /* NULL until it is detected */
  int state;
  void *work;                /* private data of the format */
  xt_buffer buffer;          /* the spooled bytes, then those that `step` looks at; its room counts in the budget */
  size_t spooled;            /* number of spooled bytes */
  bool spooling;             /* consumed bytes are spooled */
  bool spool_complete;       /* the spool is complete with the bytes that the last step has consumed */
  size_t needed;             /* number of bytes that the next step needs */
  size_t lookahead;          /* number of bytes that it may get in addition */
  size_t consumed;           /* by the last step */
  xt_pickle_scan_state scan; /* of the current pickle */
  bool light;                /* the next steps take only microseconds, or are put off */
  bool brief;                /* set by the caller: a step that takes longer is put off */
  bool put_off;              /* a step was put off: the caller feeds again, without `brief` */
  xt_push_event event;
  xt_slab slab; /* the memory of small storages */

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

/* Says that the stream was unpacked (gzip) before it is fed, and had so many bytes up to here. The allowance then
 * follows from these, because a few bytes can be unpacked to any number. The buffer is part of it, and so is everything
 * that is read and is not the data of a storage. */
void xt_push_set_stored(xt_push *p, uint64_t bytes);

/* The buffered bytes that a step may look at. */
static inline const uint8_t *xt_push_data(const xt_push *p) { return p->buffer.data + p->spooled; }
static inline size_t xt_push_available(const xt_push *p) { return p->buffer.size - p->spooled; }

/* Ends a step: n bytes are consumed, and the next step needs `needed` bytes. */
xt_status xt_push_consume(xt_push *p, size_t n, size_t needed);

/* Ends a step without consuming bytes: the next step needs `needed` bytes and may get up to `lookahead` more. */
xt_status xt_push_request(xt_push *p, size_t needed, size_t lookahead);

/* Called before the long part of a step. Returns true if it is put off: the step ends with xt_push_request and runs
 * again. */
bool xt_push_put_off(xt_push *p);

/* Finds the end of the pickle at the beginning of the buffer. Returns true and its size once it is complete. Returns
 * false after requesting more bytes, or with an error in *status. */
bool xt_push_scan_pickle(xt_push *p, size_t *size, xt_status *status, xt_error *error);

/* Returns a copy that lives as long as the checkpoint, or NULL without memory. */
uint8_t *xt_push_copy(xt_push *p, const uint8_t *data, size_t size);

/* Raises XT_PUSH_DESCRIBED: the tree and the index of the checkpoint are complete. */
xt_status xt_push_described(xt_push *p, xt_error *error);

/* Gives every storage a provisional record, because the offsets are not known yet, except for those on the device meta
 * unless `with_meta`. Then completes the index and raises XT_PUSH_DESCRIBED. */
xt_status xt_push_describe(xt_push *p, bool with_meta, xt_error *error);

/* Returns an error if the stream cannot contain this storage: its data is inside the pickle, or was received before. */
xt_status xt_push_expect(const xt_push *p, uint32_t storage, xt_error *error);

/* Ends a step: the next bytes are the data of a storage. The next step is called after they have been received. Returns
 * the error of xt_push_expect. */
xt_status xt_push_receive(xt_push *p, uint32_t storage, xt_error *error);

/* Raises XT_PUSH_STORAGE with the data of a storage. Takes over the region. */
xt_status xt_push_complete(xt_push *p, uint32_t storage, xt_region *region, xt_error *error);

/* Ends a step: the spool is complete with the next n bytes, and is opened like a file. */
xt_status xt_push_end_spool(xt_push *p, size_t n);

#endif
