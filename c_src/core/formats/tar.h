/* The tar format: torch.save before 0.1.10. It can be opened, but neither streamed nor written.
 *
 * A tar file consists of blocks of 512 bytes. Each member has a header block and its content, padded with zeros to
 * whole blocks. A block of zeros, or the end of the file, ends the tar. Used fields of a header block:
 *
 *   offset   0  name, 100 bytes, padded with NUL
 *   offset 124  size of the content, 12 bytes, octal digits
 *   offset 148  checksum, 8 bytes, octal digits: the sum of all bytes of the block, with spaces in place of the
 * checksum offset 156  type: '0' or NUL for a regular file offset 257  "ustar"
 *
 * The members, with integers in little-endian byte order:
 *
 *   1. storages
 *      a. pickle of the number of storages
 *      b. for each storage: pickle of (key, location, class), number of elements i64, the elements
 *      c. pickle of the list of views: (key, key of the viewed storage, offset, number of elements)
 *   2. tensors
 *      a. pickle of the number of tensors
 *      b. for each tensor: pickle of (key, key of the storage, class), number of dimensions i32, 4 unused bytes,
 *         sizes i64 each, strides i64 each, offset i64
 *   3. pickle: the pickled object. A persistent id is the key of a tensor or storage as decimal text.
 *   4. Other members, for example sys_info, are not used.
 */
#ifndef XT_FORMATS_TAR_H
#define XT_FORMATS_TAR_H

#include "core/checkpoint/format.h"

extern const xt_format xt_tar_format;

/* Returns whether these bytes, fewer than a block, may begin a tar file: with a name that is padded with NUL. */
bool xt_tar_may_begin(const uint8_t *head, size_t size);

#endif
