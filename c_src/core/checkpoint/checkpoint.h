/* A checkpoint, opened: its records, its object tree and the index of its tensors.
 *
 * Opening asks for bytes instead of reading them, so that files, binaries and sources that only Elixir can read go the
 * same way:
 *
 *   xt_checkpoint_begin
 *   loop: xt_checkpoint_step → a need (offset, size, where to) → fill it → step …  until it needs nothing more
 *
 * The first bytes tell the format (sniff.h); its own file (format_zip.c, …) takes over from there. Afterwards the
 * checkpoint is read-only but for the places of records, which are found when first asked for.
 */
#ifndef XT_CHECKPOINT_CHECKPOINT_H
#define XT_CHECKPOINT_CHECKPOINT_H

#include "core/checkpoint/index.h"
#include "core/checkpoint/record.h"
#include "core/memory/region.h"

typedef struct {
  uint64_t offset;
  size_t size;
  void *to;
} xt_need;

typedef struct {
  uint64_t pickle_bytes, nodes, depth, tensor_bytes; /* nodes 0: by the pickle's size */
} xt_limits;

typedef struct xt_format xt_format;

typedef struct xt_checkpoint {
  xt_limits limits;
  bool verify; /* also what opening reads */
  const xt_format *format;
  xt_records directory;
  xt_arena arena;
  xt_rebuild rebuild;
  xt_index index;
  xt_node *root;
  xt_record **records; /* of each storage; NULL where it has none (meta) */
  xt_record *inlined;  /* the records of storages that lie inside a pickle */
  xt_region *memory;   /* the whole file, when it had to be read or unpacked to be opened */
  bool unpacked;       /* it was a gzip: offsets are those of `memory` */
  bool big_endian;
  bool script; /* TorchScript: there is a constants.pkl */
  char version[16], format_version[16], alignment[16];
  xt_node *metadata; /* a safetensors file's own, a dict of strings; NULL: none */
  uint64_t base;     /* where in the file this save begins */
  uint64_t next;     /* where the one after it does; 0: there is none */
  uint64_t file_size;
  bool endless; /* it comes as a stream: file_size is only more than can come */

  /* while opening */
  int state;
  size_t pickled, before_pickles; /* bytes of pickles so far, and what the arena held before them */
  uint8_t *head;
  size_t head_size;
  void **buffers; /* all that opening allocated and the tree may point into */
  size_t buffer_count, buffer_room;
  void *work; /* the format's own notes */
} xt_checkpoint;

void xt_checkpoint_begin(xt_checkpoint *c, uint64_t file_size, uint64_t base, const xt_limits *limits, bool strict,
                         bool verify, xt_error *error);

/* Takes what the last need brought and asks for more; need->size 0: the checkpoint is open. */
xt_status xt_checkpoint_step(xt_checkpoint *c, xt_need *need, xt_error *error);

/* "zip", "torchscript", "legacy" … */
const char *xt_checkpoint_format(const xt_checkpoint *c);

/* A record by its name, or the bytes of a storage by its key, with or without "data/" before it; NULL: there is none.
 */
xt_record *xt_checkpoint_find(const xt_checkpoint *c, const char *name, size_t size);

/* The bytes of a record's own header that check_place wants to see. */
xt_need xt_checkpoint_header_need(const xt_record *record);
xt_status xt_checkpoint_check_header(xt_record *record, const uint8_t *local, uint64_t *data, xt_error *error);

/* Are the bytes of its elements the other way round than this machine's? */
bool xt_checkpoint_swaps(const xt_checkpoint *c, uint32_t storage);

/* Can it be read: a known method, and a size that its packed bytes can have? */
xt_status xt_checkpoint_check_method(const xt_record *record, xt_error *error);

/* Unpacks a deflated record, or checks the CRC of a stored one that has one. `size` bytes go to `to`. */
xt_status xt_checkpoint_inflate(const xt_record *record, const uint8_t *packed, uint8_t *to, xt_error *error);
xt_status xt_checkpoint_verify(const xt_record *record, uint32_t crc, xt_error *error);

void xt_checkpoint_free(xt_checkpoint *c);

#endif
