/* An open checkpoint: its records, its object tree and the index of its tensors.
 *
 * Opening requests bytes instead of reading them, so that files, binaries and sources that only Elixir can read are all
 * opened by the same code:
 *
 *   xt_checkpoint_begin
 *   repeat: xt_checkpoint_step → a need (offset, size, destination) → the caller fills it
 *   until the need has size 0
 *
 * The first bytes determine the format (formats/detect.h), whose own step function (formats/format.h) does the rest. An
 * open checkpoint is read-only, except for the data offsets of zip records, which are found when a record is first
 * read.
 */
#ifndef XT_CHECKPOINT_CHECKPOINT_H
#define XT_CHECKPOINT_CHECKPOINT_H

#include "core/checkpoint/index.h"
#include "core/checkpoint/record.h"
#include "core/memory/region.h"

/* A range of the file that is needed to go on, and the memory it must be read into. */
typedef struct {
  uint64_t offset;
  size_t size;
  void *to;
} xt_need;

/* 0 means no limit for `nodes`, and xt_allowance_for the size of the file for `memory`. */
typedef struct {
  uint64_t pickle_bytes, nodes, depth, tensor_bytes, memory;
} xt_limits;

typedef struct xt_format xt_format;

typedef struct xt_checkpoint {
  xt_limits limits;
  bool verify;            /* also check the CRC of records that are read while opening */
  xt_allowance allowance; /* for everything below except `memory` */
  const xt_format *format;
  xt_records directory;
  xt_arena arena;
  xt_rebuild rebuild;
  xt_index index;
  xt_node *root;
  xt_record **records;       /* one per storage; NULL for a storage without data (device meta) */
  xt_record *inline_records; /* the records of storages whose data is inside a pickle */
  xt_region *memory;         /* the whole file, if it had to be read or decompressed to open it; else NULL */
  bool unpacked;             /* the file was a gzip file: all offsets are offsets in `memory` */
  bool big_endian;
  bool is_torchscript; /* the file has a record constants.pkl */
  char version[16], format_version[16], alignment[16];
  xt_node *metadata; /* __metadata__ of a safetensors file, a dict of strings; NULL if there is none */
  uint64_t base;     /* offset in the file where this save begins */
  uint64_t next;     /* offset where the next save begins; 0 if there is none */
  uint64_t file_size;
  bool size_unknown; /* the checkpoint is a stream: file_size is only an upper bound */

  /* while opening */
  int state;
  uint8_t *head; /* the first bytes of the save */
  size_t head_size;
  void **buffers; /* memory allocated while opening, which the tree may point into */
  size_t buffer_count, buffer_capacity;
  void *work; /* private data of the format */
} xt_checkpoint;

void xt_checkpoint_begin(xt_checkpoint *c, uint64_t file_size, uint64_t base, const xt_limits *limits, bool strict,
                         bool verify, xt_error *error);

/* Sets how many bytes of the file are known to exist, from which the allowance follows. */
void xt_checkpoint_set_present(xt_checkpoint *c, uint64_t bytes);

/* Uses the bytes of the last need and sets the next one. The checkpoint is open when need->size is 0. */
xt_status xt_checkpoint_step(xt_checkpoint *c, xt_need *need, xt_error *error);

/* Returns "zip", "torchscript", "legacy" … */
const char *xt_checkpoint_format(const xt_checkpoint *c);

/* Finds a record by its name, or the record of a storage by its key, with or without the prefix "data/". Returns NULL
 * if there is none. */
xt_record *xt_checkpoint_find(const xt_checkpoint *c, const char *name, size_t size);

/* Returns the range of a zip record's local header that xt_checkpoint_check_header needs. */
xt_need xt_checkpoint_header_need(const xt_record *record);

/* Checks the local header of a zip record, and stores the offset of its data in the record and in *data. */
xt_status xt_checkpoint_check_header(xt_record *record, const uint8_t *local, uint64_t *data, xt_error *error);

/* Returns true if the byte order of the storage's elements differs from that of this machine. */
bool xt_checkpoint_needs_swap(const xt_checkpoint *c, uint32_t storage);

/* Checks that the compression method is supported and that the two sizes are possible for it. */
xt_status xt_checkpoint_check_method(const xt_record *record, xt_error *error);

/* Decompresses a deflated record into `to`, which has record->size bytes, and checks its CRC. */
xt_status xt_checkpoint_inflate(const xt_record *record, const uint8_t *packed, uint8_t *to, xt_error *error);

/* Compares the CRC of a record's data with the one in the file, if there is one. */
xt_status xt_checkpoint_verify(const xt_record *record, uint32_t crc, xt_error *error);

void xt_checkpoint_free(xt_checkpoint *c);

#endif
