/* Reading forward only: a checkpoint that comes in pieces, through a socket or an upload, and cannot be asked for what
 * lies further on.
 *
 *   xt_push_begin → xt_push_feed (a piece) … until XT_PUSH_DONE → xt_push_free
 *
 * Bytes that describe are held until they are whole; bytes of storages go from the piece straight into the memory that
 * tensors will own. What torch.save, safetensors' writers and torch.distributed write comes in an order that allows it:
 * the description first. Where the storages come first (TorchScript, C++ archives) everything is kept, up to a limit,
 * and opened like a file once it is whole.
 *
 * Each format is a file (forward_zip.c, …) and a function that looks at what is held, and takes it, or asks for more.
 */
#ifndef XT_CHECKPOINT_PUSH_H
#define XT_CHECKPOINT_PUSH_H

#include "core/base/buffer.h"
#include "core/checkpoint/batch_load.h"
#include "core/pickle/scan.h"

typedef enum {
  XT_PUSH_MORE,      /* the piece is used up */
  XT_PUSH_DESCRIBED, /* the tree and the index are complete: the checkpoint can be asked, and storages chosen */
  XT_PUSH_STORAGE,   /* one storage is complete: `storage` */
  XT_PUSH_DONE       /* all are, and the stream has come to its end */
} xt_push_event;

typedef struct xt_push xt_push;
typedef xt_status (*xt_push_step)(xt_push *p, xt_error *error);

struct xt_push {
  xt_checkpoint *checkpoint; /* described so far; belongs to the caller */
  uint64_t spool_bytes;      /* the most that may be kept of what cannot be understood yet */
  bool strict;
  uint64_t at;         /* bytes of the stream that are done with */
  xt_region **regions; /* of each storage, from DESCRIBED on */
  bool *wanted;        /* the bytes of the others are passed over */
  bool *came;          /* those that are complete: the caller may have taken their regions */
  size_t storages;
  uint32_t storage;  /* of the last event, or the one that is being received */
  const char *doing; /* what the end of the stream would interrupt */

  /* for the formats */
  xt_push_step step;
  int state;
  void *work; /* the format's notes */
  void (*free_work)(void *work);
  xt_buffer held;            /* the kept bytes, then those that `step` looks at */
  size_t kept;               /* done with, and kept for the spool */
  bool keeps;                /* what is taken is kept */
  size_t want, ahead;        /* step wants to see so many, and may be given so many more */
  size_t taken;              /* by the last step */
  xt_pickle_scan_state scan; /* how far the pickle at hand was looked through */
  bool light;                /* the next steps take microseconds: headers between storages, and no more */
  xt_push_event event;

  /* the storage that is being received */
  bool receiving;
  xt_region *region;
  uint64_t left;
  uint32_t crc;
  size_t touched;     /* of its memory, ahead of what came */
  uint64_t received;  /* bytes of storages so far */
  uint64_t to_come;   /* of those that have not begun */
  size_t inline_next; /* storages that lie inside the pickle are complete once it is */
  xt_region *spool;   /* all of the stream */
  xt_batch_load loader;
  bool failed;
};

/* The checkpoint was begun with xt_push_begin_checkpoint. */
void xt_push_begin(xt_push *p, xt_checkpoint *checkpoint, uint64_t spool_bytes);

/* Begins a checkpoint whose size nobody knows. */
void xt_push_begin_checkpoint(xt_checkpoint *c, const xt_limits *limits, bool strict, bool verify, xt_error *error);

/* Takes some of a piece, up to the next event; *used tells how many. An error with `collect` set leaves everything as
 * it was: the rest of the piece may be fed again. After any other the stream cannot go on. */
xt_status xt_push_feed(xt_push *p, const uint8_t *data, size_t size, size_t *used, xt_push_event *event,
                       xt_error *error);

/* At least so many more bytes must come: what is wanted now, and all storages that have not begun. */
uint64_t xt_push_missing(const xt_push *p);

/* The stream ended before it was done: always an error, which says how far it had come. */
xt_status xt_push_end(xt_push *p, xt_error *error);

/* Before the checkpoint is freed. */
void xt_push_free(xt_push *p);

/* ---- For the formats ---- */

xt_status xt_zip_push(xt_push *p, xt_error *error);
xt_status xt_torch_stream_push(xt_push *p, xt_error *error);
xt_status xt_legacy_push(xt_push *p, xt_error *error);
xt_status xt_safetensors_push(xt_push *p, xt_error *error);

static inline const uint8_t *xt_push_data(const xt_push *p) { return p->held.data + p->kept; }
static inline size_t xt_push_have(const xt_push *p) { return p->held.size - p->kept; }

/* Ends the step: so many of the bytes are done with, and the next step wants to see so many. */
xt_status xt_push_take(xt_push *p, size_t n, size_t want);

/* Ends the step: it wants to see so many bytes, and may be given more. */
xt_status xt_push_ask(xt_push *p, size_t want, size_t ahead);

/* Is the pickle that begins here whole? *size is its length then. False: it asked for more, or found an error. */
bool xt_push_pickle(xt_push *p, size_t *size, xt_status *status, xt_error *error);

/* A copy of bytes that are held, which lives as long as the checkpoint. */
uint8_t *xt_push_copy(xt_push *p, const uint8_t *data, size_t size);

/* The tree is complete. */
xt_status xt_push_described(xt_push *p, xt_error *error);

/* What comes next are the bytes of a storage; the step after that finds them received. */
void xt_push_receive(xt_push *p, uint32_t storage);

/* The bytes of a storage are here, in a region that is taken over. */
void xt_push_complete(xt_push *p, uint32_t storage, xt_region *region);

/* All is kept, and n more bytes are the last: opens them like a file. */
xt_status xt_push_open_spool(xt_push *p, size_t n, xt_error *error);

#endif
