/* A checkpoint: its records, its object tree and the index of its tensors.
 *
 * Opening requests bytes instead of reading them, so that files, binaries and sources that only Elixir can read are all
 * opened by the same code:
 *
 *   xt_checkpoint_begin
 *   repeat: xt_open_step (formats/open.h) → a need (offset, size, destination) → the caller fills it
 *   until the need has size 0
 *
 * What only opening needs is in `opening` (opening.h), which is freed when the checkpoint is open. An open checkpoint
 * is read-only, except for the data offsets of records, which some formats find when a record is first read.
 */
#ifndef XT_CHECKPOINT_CHECKPOINT_H
#define XT_CHECKPOINT_CHECKPOINT_H

#include "core/checkpoint/index.h"
#include "core/checkpoint/record.h"
#include "core/memory/region.h"
#include "core/tensor/storages.h"

/* A range of the file that is needed to go on, and the memory it must be read into. */
typedef struct {
  uint64_t offset;
  size_t size;
  void *to;
} xt_need;

/* 0 means no limit for `nodes`, and xt_allowance_for the size of the file for `memory`, if the file is one of `files`
 * that are open together. */
typedef struct {
  uint64_t pickle_bytes, nodes, depth, tensor_bytes, memory, files;
} xt_limits;

typedef struct xt_format xt_format;
typedef struct xt_opening xt_opening;

/* Whether the records have a CRC. torch can write files without: the fields of all records are 0 then. */
typedef enum { XT_CHECKSUMS_NONE /* not in this format */, XT_CHECKSUMS_PRESENT, XT_CHECKSUMS_ABSENT } xt_checksums;

typedef struct xt_checkpoint {
  xt_allowance allowance; /* for everything below except `memory` */
  const xt_format *format;
  xt_records directory;
  xt_arena arena;
  xt_storages storages;
  xt_record **records;       /* one per storage; NULL for a storage without data (device meta) */
  xt_record *inline_records; /* the records of storages whose data is inside a pickle */
  xt_index index;
  xt_node *root;
  void **buffers; /* bytes of the file that were read while opening; the tree points into them */
  size_t buffer_count, buffer_room;
  xt_region *memory; /* the whole file, if it had to be read or decompressed to open it; else NULL */
  bool unpacked;     /* the file was a gzip file: all offsets are offsets in `memory` */
  bool big_endian;
  bool is_torchscript; /* the file has a record constants.pkl */
  size_t constants;    /* number of its constants */
  xt_checksums checksums;
  char version[16], format_version[16], alignment[16];
  xt_node *metadata; /* __metadata__ of a safetensors file, a dict of strings; NULL if there is none */
  uint64_t base;     /* offset in the file where this save begins */
  uint64_t next;     /* offset where the next save begins; 0 if there is none */
  uint64_t file_size;
  atomic_uint_least64_t read_to;   /* where the last read ended, and up to where the system was asked to read ahead */
  atomic_uint_least64_t requested; /* (readers.c) */
  xt_opening *opening;             /* NULL once the checkpoint is open */
} xt_checkpoint;

void xt_checkpoint_begin(xt_checkpoint *c, uint64_t file_size, uint64_t base, const xt_limits *limits, bool strict,
                         bool verify);

/* Returns "zip", "torchscript", "legacy" … */
const char *xt_checkpoint_format(const xt_checkpoint *c);

/* Finds a record by its name, or the record of a storage by its key, with or without the prefix "data/". Returns NULL
 * if there is none. */
xt_record *xt_checkpoint_find(const xt_checkpoint *c, const char *name, size_t size);

/* Returns the range of the file that says where the record's data begins. Its size is 0 if that is known. */
xt_need xt_checkpoint_locate_need(const xt_checkpoint *c, const xt_record *record);

/* Sets *data to the offset of the record's data. `header` has the bytes of that range, if its size is not 0. */
xt_status xt_checkpoint_locate(const xt_checkpoint *c, xt_record *record, const uint8_t *header, uint64_t *data,
                               xt_error *error);

/* Returns a range that contains the record's data wherever it begins, and what xt_checkpoint_locate needs. */
xt_need xt_checkpoint_record_range(const xt_checkpoint *c, const xt_record *record);

/* Returns true if the byte order of the storage's elements differs from that of this machine. */
bool xt_checkpoint_needs_swap(const xt_checkpoint *c, uint32_t storage);

void xt_checkpoint_free(xt_checkpoint *c);

#endif
