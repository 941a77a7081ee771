/* numpy's own formats. npy_header.h has the layout of an array.
 *
 * npy: one array; other arrays may follow it in the same file.
 *
 * npz: a zip file whose members are arrays, "a.npy" for the array a, stored or deflated. The header of each array is
 * read when the file is opened. Members with other names are records that are not used.
 */
#ifndef XT_FORMATS_NPY_H
#define XT_FORMATS_NPY_H

#include "core/checkpoint/format.h"
#include "core/checkpoint/saver.h"
#include "core/formats/npy_header.h"

extern const xt_format xt_npy_format, xt_npz_format;
extern const xt_push_parser xt_npy_push;
extern const xt_format_writer xt_npy_write, xt_npz_write; /* of one tensor; of named tensors */

/* Makes the tensor of an array whose storage begins at its first element, or with its header if it is in a record. */
xt_status xt_npy_add_tensor(xt_opening *o, const xt_npy_header *header, const char *key, size_t key_size,
                            uint64_t header_size, uint64_t storage_size, xt_node **tensor, xt_error *error);

/* Describes the array of an npy file, from its header at offset `at`. */
xt_status xt_npy_describe(xt_opening *o, const uint8_t *header, size_t size, uint64_t at, xt_error *error);

/* ---- npz ---- */

typedef struct {
  xt_window window;
  xt_node *root;
  uint8_t *unpacked;  /* the beginning of a compressed array */
  size_t next;        /* index of the next record */
  size_t packed_size; /* number of compressed bytes of it to read */
} xt_npz;

/* Returns whether the records of a zip file are those of an npz file. */
bool xt_npz_matches(const xt_records *directory);

/* Opens the file after the zip format has read its directory. Called again after each need is filled. */
xt_status xt_npz_open(xt_opening *o, xt_npz *work, xt_need *need, xt_error *error);

#endif
