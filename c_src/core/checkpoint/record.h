/* Records: the named runs of bytes that a checkpoint is made of, whatever its format. */
#ifndef XT_CHECKPOINT_RECORD_H
#define XT_CHECKPOINT_RECORD_H

#include <stdatomic.h>

#include "core/base/arena.h"
#include "core/base/table.h"

enum { XT_RECORD_STORED = 0, XT_RECORD_DEFLATED = 8 };

/* A place from here on is no offset in the file but an address: the bytes lie in memory, inside a pickle. No file is so
 * long, and no address so high. */
#define XT_INLINE ((uint64_t)1 << 62)

typedef struct {
  const char *name; /* not terminated */
  size_t name_size;
  uint64_t header; /* where it begins; a zip has a header of its own before the data */
  uint64_t packed, size;
  uint64_t end;                      /* nothing of this record lies at or past here */
  atomic_uint_least64_t data_offset; /* where the data begins; 0: that is found when the record is first read */
  uint32_t crc;
  uint16_t flags, method;
  bool has_crc;
} xt_record;

typedef struct {
  xt_record *list; /* in the file's own order */
  size_t count, room;
  xt_table names;
  bool unnamed;
  size_t root_size; /* length of the root folder's name and its slash, in every name */
} xt_records;

/* Room for exactly so many; false when there is no memory. Records do not move. Unnamed ones cannot be found. */
bool xt_records_reserve(xt_records *records, xt_arena *arena, size_t count, bool named);

/* A zeroed record; NULL when there is no memory, or when the name is taken (*taken). */
xt_record *xt_records_add(xt_records *records, const char *name, size_t name_size, bool *taken);

/* A stored record whose data is at a known place. */
xt_record *xt_records_add_stored(xt_records *records, const char *name, size_t name_size, uint64_t data_offset,
                                 uint64_t size, bool *taken);
void xt_record_set_data(xt_record *record, uint64_t data_offset, uint64_t size);

/* The record of a name below the root folder ("data.pkl"), or of the whole name; NULL when there is none. */
xt_record *xt_records_find(const xt_records *records, const char *name, size_t name_size);

void xt_records_free(xt_records *records);

#endif
