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
#ifndef XT_FORMATS_ZIP_H
#define XT_FORMATS_ZIP_H

#include "core/base/error.h"
#include "core/checkpoint/record.h"

enum {
  XT_ZIP_TAIL = 66 * 1024, /* the end record and the longest comment are within so many last bytes */
  XT_ZIP_LOCAL = 30        /* a local header without name and extra */
};

typedef struct {
  uint64_t file_size;
  uint64_t directory, directory_size; /* where the central directory is */
  uint64_t declared;                  /* how many records the end record counts */
} xt_zip;

/* Finds the end record in the last bytes of the file (all of it, when it is short). */
xt_status xt_zip_find_directory(xt_zip *zip, const uint8_t *tail, size_t tail_size, uint64_t file_size,
                                xt_error *error);

/* Reads the directory, whose memory must outlive the records. */
xt_status xt_zip_read_directory(const xt_zip *zip, const uint8_t *directory, xt_arena *arena, xt_records *records,
                                xt_error *error);

/* What a local header says by itself, for those who have not seen the directory. Where the sizes stand in a descriptor
 * behind the data, the header does not tell them. `size` bytes are there; *wanted tells how many it has. */
xt_status xt_zip_read_local(const uint8_t *local, size_t size, uint64_t at, xt_record *record, bool *sized,
                            size_t *wanted, xt_error *error);

/* The descriptor of a record of `packed` bytes that ends here, and the header of what comes next: so many bytes are
 * looked at. Its length, or 0 when this is none. */
enum { XT_ZIP_DESCRIPTOR = 28 };
size_t xt_zip_read_descriptor(const uint8_t *bytes, uint64_t packed, xt_record *record);

/* How many bytes the part of the directory has that begins here, or the end record; 0: it is something else. *wanted
 * are needed to tell. */
size_t xt_zip_directory_part(const uint8_t *bytes, size_t size, size_t *wanted, bool *is_entry, bool *is_last);

/* Checks the first XT_ZIP_LOCAL + name_size bytes of a local header and tells where the data starts. */
xt_status xt_zip_check_local(const xt_record *entry, const uint8_t *local, uint64_t *data, xt_error *error);

#endif
