/* A checkpoint, opened: its directory, its object tree and the index of its tensors.
 *
 * Opening asks for bytes instead of reading them, so that files, binaries and sources that only Elixir can read go the
 * same way:
 *
 *   xt_checkpoint_begin
 *   loop: xt_checkpoint_step → a need (offset, size, where to) → fill it → step …  until it needs nothing more
 *
 * Afterwards the checkpoint is read-only but for the places of records, which are found when first asked for.
 */
#ifndef XT_CHECKPOINT_H
#define XT_CHECKPOINT_H

#include <stdatomic.h>

#include "index.h"
#include "zip.h"

typedef struct {
  uint64_t offset;
  size_t size;
  void *to;
} xt_need;

typedef struct {
  uint64_t pickle_bytes, nodes, depth, tensor_bytes; /* nodes 0: by the pickle's size */
} xt_limits;

typedef struct {
  xt_limits limits;
  bool verify; /* also what opening reads */
  xt_zip zip;
  xt_arena arena;
  xt_meaning meaning;
  xt_index index;
  xt_node *root;
  const xt_zip_entry **records;  /* of each storage; NULL where it has none (meta) */
  atomic_uint_least64_t *places; /* where each record's data begins, 0: not known yet */
  bool big_endian;
  char version[16], format_version[16], alignment[16];
  bool script; /* TorchScript: there is a constants.pkl */

  /* while opening */
  int state;
  uint64_t file_size;
  uint8_t *head, *tail, *directory, *pickle;
  size_t pickle_size;
  size_t wanted;             /* which of the records that opening reads */
  const xt_zip_entry *entry; /* the record at work */
  uint8_t *local, *packed;
} xt_checkpoint;

void xt_checkpoint_begin(xt_checkpoint *c, uint64_t file_size, const xt_limits *limits, bool strict, bool verify,
                         xt_error *error);

/* Takes what the last need brought and asks for more; need->size 0: the checkpoint is open. */
xt_status xt_checkpoint_step(xt_checkpoint *c, xt_need *need, xt_error *error);

/* The bytes of a local header that check_place wants to see. */
xt_need xt_checkpoint_place_need(const xt_zip_entry *entry);
xt_status xt_checkpoint_check_place(xt_checkpoint *c, const xt_zip_entry *entry, const uint8_t *local, uint64_t *data,
                                    xt_error *error);
uint64_t xt_checkpoint_place(const xt_checkpoint *c, const xt_zip_entry *entry); /* 0: not known yet */

/* Can it be read: a known method, and a size that its packed bytes can have? */
xt_status xt_checkpoint_check_method(const xt_zip_entry *entry, xt_error *error);

/* Unpacks a deflated record, or checks the CRC of a stored one. `size` bytes go to `to`. */
xt_status xt_checkpoint_inflate(const xt_zip_entry *entry, const uint8_t *packed, uint8_t *to, xt_error *error);
xt_status xt_checkpoint_verify(const xt_zip_entry *entry, uint32_t crc, xt_error *error);

void xt_checkpoint_free(xt_checkpoint *c);

#endif
