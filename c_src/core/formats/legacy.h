/* The legacy format: torch.save from 0.1.10 to 1.5, and with _use_new_zipfile_serialization=False.
 *
 *   1. Pickle of the magic number 0x1950a86a20f9469cfc6c. With protocol 2:
 *      80 02 8a 0a 6c fc 9c 46 f9 20 6a a8 50 19 2e
 *      With protocol 0 or 1: L119547037146038801333356L, a line end and a period
 *   2. Pickle of the protocol version, the integer 1001
 *   3. Pickle of a dict: protocol_version, little_endian, type_sizes {short, int, long}
 *   4. Pickle of the object. Persistent ids: ('storage', class, key, location, number of elements, view), where view is
 *      None or (key of the view, offset, number of elements)
 *   5. Pickle of the list of storage keys, sorted
 *   6. For each key: the number of elements as i64, then the elements
 *
 * Numbers are little-endian and nothing is padded. The elements of a storage may be followed by stray bytes, fewer than
 * one element: torch writes them if a byte storage is viewed as a wider dtype and its size is not a multiple of the
 * element size. Another save may follow in the same file.
 */
#ifndef XT_FORMATS_LEGACY_H
#define XT_FORMATS_LEGACY_H

#include "core/checkpoint/format.h"
#include "core/checkpoint/saver.h"
#include "core/pickle/legacy.h"

extern const xt_format xt_legacy_format;
extern const xt_push_parser xt_legacy_push;
extern const xt_format_writer xt_legacy_write;

/* ---- Parts of the file, for the opener and the push parser ---- */

/* Checks a pickle before the object. */
xt_status xt_legacy_read_header(xt_opening *o, int pickle, const uint8_t *data, size_t size, uint64_t at,
                                xt_error *error);

/* Reads the object into the root of the tree. The data must stay allocated as long as the checkpoint. */
xt_status xt_legacy_read_object(xt_opening *o, const uint8_t *data, size_t size, uint64_t at, xt_error *error);

/* The storages in the order of their data, as indexes of the checkpoint's storages. */
typedef struct {
  uint32_t *list;
  size_t count;
} xt_legacy_order;

/* Reads the list of keys. */
xt_status xt_legacy_read_keys(xt_opening *o, const uint8_t *data, size_t size, uint64_t at, xt_legacy_order *order,
                              xt_error *error);

/* Adds the record of a storage. `bytes` are those at offset `at`: the storage's number of elements, after up to `slack`
 * stray bytes. Sets *data_offset to the offset of the first element. */
xt_status xt_legacy_locate_storage(xt_checkpoint *c, uint32_t storage, const uint8_t *bytes, uint64_t slack,
                                   uint64_t at, uint64_t *data_offset, xt_error *error);

#endif
