/* The streaming format of torch.distributed (torch.distributed._serialization). The API calls it :streaming.
 *
 *   1. Pickle, protocol 2, of a list of torch.distributed._serialization._Entry objects with the attributes
 *      key (name of the record), is_storage and length (in bytes)
 *   2. The records of that list (see named_records.h), in the same order, without padding
 *
 * torch writes data.pkl first and the storages last. There is no checksum. Another message may follow on the same
 * connection.
 */
#ifndef XT_FORMATS_TORCH_STREAM_H
#define XT_FORMATS_TORCH_STREAM_H

#include "core/checkpoint/format.h"
#include "core/checkpoint/saver.h"

extern const xt_format xt_torch_stream_format;
extern const xt_push_parser xt_torch_stream_push;
extern const xt_format_writer xt_torch_stream_write;

/* Reads the list of records into the directory. The list ends at offset `at`, where the first record begins. The data
 * must stay allocated as long as the checkpoint. */
xt_status xt_torch_stream_read_list(xt_opening *o, const uint8_t *data, size_t size, uint64_t at, xt_error *error);

#endif
