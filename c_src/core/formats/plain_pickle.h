/* Plain pickles: pickle.dump of a state dict, without torch.save. They can be opened and streamed, but not written.
 *
 *   1. One pickle of any protocol, which contains the data of its tensors: as torch.storage._load_from_bytes of a whole
 *      torch.save, or as numpy arrays
 *   2. Optionally another save
 */
#ifndef XT_FORMATS_PLAIN_PICKLE_H
#define XT_FORMATS_PLAIN_PICKLE_H

#include "core/checkpoint/format.h"

extern const xt_format xt_plain_pickle_format;

/* Returns whether a pickle may begin with this byte: PROTO, or the first opcode of protocol 0 or 1. */
bool xt_plain_pickle_may_begin(uint8_t first);

/* Returns whether a short pickle, which is recognized by its end, may begin with these bytes: the first opcode of
 * protocol 0 or 1 needs nothing on the stack, and its argument is a quoted string or a number where it must be one. */
bool xt_plain_pickle_may_begin_short(const uint8_t *head, size_t size);

/* Returns the size of the shortest pickle that is recognized by its end. A STOP at the fourth byte or later cannot be
 * part of the header size of a safetensors file; an earlier one can. */
size_t xt_plain_pickle_min_size(uint8_t first);

#endif
