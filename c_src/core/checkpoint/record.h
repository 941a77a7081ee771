/* Records: the named runs of bytes in a checkpoint file, in any format. */
#ifndef XT_CHECKPOINT_RECORD_H
#define XT_CHECKPOINT_RECORD_H

#include <stdatomic.h>

#include "core/base/error.h"
#include "core/memory/arena.h"
#include "core/memory/table.h"

enum { XT_RECORD_STORED = 0, XT_RECORD_DEFLATED = 8 }; /* compression methods, numbered as in zip files */

/* A data offset of XT_INLINE or more is XT_INLINE plus an address: the data is in memory, inside a pickle. Neither file
 * offsets nor addresses are that large. */
#define XT_INLINE ((uint64_t)1 << 62)

typedef struct {
  const char *name; /* not NUL-terminated */
  size_t name_size;
  uint64_t header;                   /* offset of the record: of its header if it has one, else of its data */
  uint64_t packed, size;             /* size in the file and size of the content */
  uint64_t end;                      /* upper bound of the offset where the record ends */
  atomic_uint_least64_t data_offset; /* offset of the data; 0 until it has been located */
  uint32_t crc;
  uint16_t flags, method;
  bool has_crc;
} xt_record;

typedef struct {
  xt_record *list; /* in the order of the file's directory */
  size_t count, capacity;
  xt_table names;
  bool unnamed;     /* there is no table of names */
  size_t root_size; /* length of the root directory's name with its slash, with which every name begins */
} xt_records;

/* Allocates memory for `count` records, which do not move and cannot become more. Records can be found by name only if
 * `named`. Returns false without memory. */
bool xt_records_reserve(xt_records *records, xt_arena *arena, size_t count, bool named);

/* Adds a record whose other fields are zero. Returns NULL without memory, or with *duplicate set if the name exists. */
xt_record *xt_records_add(xt_records *records, const char *name, size_t name_size, bool *duplicate);

/* Same as xt_records_add for an uncompressed record whose data offset is known. */
xt_record *xt_records_add_stored(xt_records *records, const char *name, size_t name_size, uint64_t data_offset,
                                 uint64_t size, bool *duplicate);
void xt_record_set_data(xt_record *record, uint64_t data_offset, uint64_t size);

/* Finds a record by its full name, or by its name below the root directory ("data.pkl"). NULL if there is none. */
xt_record *xt_records_find(const xt_records *records, const char *name, size_t name_size);

void xt_records_free(xt_records *records);

/* ---- Content ---- */

/* Checks that the compression method is supported and that the two sizes are possible for it. */
xt_status xt_record_check_method(const xt_record *record, xt_error *error);

/* Decompresses a deflated record into `to`, which has record->size bytes, and checks its CRC. */
xt_status xt_record_inflate(const xt_record *record, const uint8_t *packed, uint8_t *to, xt_error *error);

/* Compares the CRC of a record's data with the one in the file, if there is one. */
xt_status xt_record_verify(const xt_record *record, uint32_t crc, xt_error *error);

#endif
