/* Named records: the layout inside zip files and the streaming format. The names are below the root directory, if the
 * file has one.
 *
 *   1. data.pkl            the pickled object
 *   2. data/<key>          the data of a storage. Its key is in a persistent id of data.pkl:
 *                          ('storage', class, key, location, number of elements)
 *   3. byteorder           "little" or "big"; little-endian if it is missing
 *   4. version             version of the file format, for example "3\n"; .data/version from version 6 on
 *   5. .format_version     "1", since torch 2.7
 *   6. .storage_alignment  alignment of the data, for example "64", since torch 2.7
 *   7. constants.pkl       only in TorchScript files: a pickled tuple of constants. The data of their storages is in
 *                          constants/<key>
 *   8. Other records, for example .data/serialization_id and code/…, are not used.
 *
 * torch.save writes data.pkl before the storages, TorchScript and C++ archives write it after them. The data of a
 * storage may be followed by stray bytes, fewer than one element: torch writes them if a byte storage is viewed as a
 * wider dtype and its size is not a multiple of the element size.
 */
#ifndef XT_FORMATS_NAMED_RECORDS_H
#define XT_FORMATS_NAMED_RECORDS_H

#include "core/checkpoint/format.h"

/* The state of opening the records: part of the private data of the format. */
typedef struct {
  size_t next; /* which of the records is read next */
  xt_record *record;
  xt_need range;             /* the bytes that were requested for it */
  const uint8_t *pickles[2]; /* content of data.pkl and constants.pkl */
  size_t sizes[2];
  uint64_t stored; /* bytes of these records in the file */
  bool deflated;   /* one of them was compressed */
} xt_named_records;

/* Opens the checkpoint after the format has filled the directory. Called with a zeroed state at first. */
xt_status xt_named_records_open(xt_opening *o, xt_named_records *records, xt_need *need, xt_error *error);

/* Finds the records of the storages and completes the index. `more` is a second tree to index, or NULL. */
xt_status xt_named_records_finish(xt_opening *o, xt_node *more, xt_error *error);

/* The small text records, such as "version". find_text returns a number that identifies the record by its name below
 * the root directory, or 0 if it is not one of them. read_text stores the content in the checkpoint. */
enum { XT_NAMED_RECORDS_MAX_TEXT = 4096 }; /* size limit of such a record */
int xt_named_records_find_text(const char *name, size_t size);
xt_status xt_named_records_read_text(xt_checkpoint *c, int text, const uint8_t *data, size_t size, uint64_t at,
                                     xt_error *error);

#endif
