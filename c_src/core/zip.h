/* A zip archive's directory, as torch.save and other tools write it.
 *
 *   local header · name · extra · data · [descriptor]     once per record
 *   central directory: a header per record
 *   [zip64 end · zip64 locator] · end record · [comment, or bytes that somebody appended]
 *
 * Everything here works on memory that is handed in; offsets are those of the file. The directory is believed only
 * after it was checked: one end record, no duplicate names, no overlapping records, every range inside the file. A
 * record's local header is checked against the directory when the record is read.
 */
#ifndef XT_ZIP_H
#define XT_ZIP_H

#include "error.h"
#include "table.h"

enum {
  XT_ZIP_TAIL = 66 * 1024, /* the end record and the longest comment are within so many last bytes */
  XT_ZIP_LOCAL = 30,       /* a local header without name and extra */
  XT_ZIP_STORED = 0,
  XT_ZIP_DEFLATED = 8
};

typedef struct {
  const char *name; /* in the directory's memory, not terminated */
  size_t name_size;
  uint64_t header; /* offset of the local header */
  uint64_t packed, size;
  uint64_t end; /* nothing of this record lies at or past here */
  uint32_t crc;
  uint16_t flags, method;
} xt_zip_entry;

typedef struct {
  uint64_t file_size;
  uint64_t directory, directory_size; /* where the central directory is */
  uint64_t declared;                  /* how many entries the end record counts */
  xt_zip_entry *entries;              /* in the order of the directory */
  size_t count;
  xt_table names;
  size_t root_size; /* length of the root folder's name and its slash, in every entry's name */
} xt_zip;

/* Finds the end record in the last bytes of the file (all of it, when it is short). */
xt_status xt_zip_find_directory(xt_zip *zip, const uint8_t *tail, size_t tail_size, uint64_t file_size,
                                xt_error *error);

/* Reads the directory, whose memory must outlive the zip. */
xt_status xt_zip_read_directory(xt_zip *zip, const uint8_t *directory, xt_error *error);

/* The record of a name below the root folder ("data.pkl"), or of the whole name; NULL when there is none. */
const xt_zip_entry *xt_zip_find(const xt_zip *zip, const char *name, size_t name_size);

/* Checks the first XT_ZIP_LOCAL + name_size bytes of a local header and tells where the data starts. */
xt_status xt_zip_check_local(const xt_zip_entry *entry, const uint8_t *local, uint64_t *data, xt_error *error);

void xt_zip_free(xt_zip *zip);

#endif
