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

#include "core/formats/format.h"

/* Opens the checkpoint after the format has filled c->directory. */
xt_status xt_named_records_begin(xt_checkpoint *c, xt_need *need, xt_error *error);
xt_status xt_named_records_step(xt_checkpoint *c, xt_need *need, xt_error *error);

/* First value of c->state that belongs to xt_named_records_step. Smaller values belong to the format itself, which
 * calls xt_named_records_step for all others. */
enum { XT_NAMED_RECORDS_STATES = 100 };

/* The small text records, such as "version". find_text returns a number that identifies the record by its name below
 * the root directory, or 0 if it is not one of them. read_text stores the content in the checkpoint. */
enum { XT_NAMED_RECORDS_MAX_TEXT = 4096 }; /* size limit of such a record */
int xt_named_records_find_text(const char *name, size_t size);
xt_status xt_named_records_read_text(xt_checkpoint *c, int text, const uint8_t *data, size_t size, uint64_t at,
                                     xt_error *error);

#endif
