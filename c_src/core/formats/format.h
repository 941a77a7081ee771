/* The interface of a format, and the helpers that the formats share while a checkpoint is opened. */
#ifndef XT_FORMATS_FORMAT_H
#define XT_FORMATS_FORMAT_H

#include "core/checkpoint/checkpoint.h"
#include "core/pickle/scan.h"

struct xt_format {
  const char *name;
  bool at_any_offset; /* the save may start at any offset of the file, for example behind another save */
  /* Called again after each need is filled. The first call has c->state 0 and the first bytes in c->head. */
  xt_status (*step)(xt_checkpoint *c, xt_need *need, xt_error *error);
};

extern const xt_format xt_zip_format, xt_legacy_format, xt_tar_format, xt_torch_stream_format, xt_safetensors_format,
    xt_plain_pickle_format, xt_gzip_format;

xt_status xt_open_no_memory(xt_error *error);

/* Returns zeroed memory that lives as long as the checkpoint, or NULL without memory. */
void *xt_open_alloc(xt_checkpoint *c, size_t size);

/* Allocates a buffer for `size` bytes of the file and sets *need to fill it. The caller has checked that the size does
 * not exceed the file's. */
xt_status xt_open_request(xt_checkpoint *c, uint8_t **buffer, uint64_t offset, uint64_t size, xt_need *need,
                          xt_error *error);

/* A part of the file in memory, which grows or moves while the file is read. */
typedef struct {
  uint8_t *data;
  uint64_t at; /* offset of `data` in the file */
  size_t size, capacity;
  uint64_t pickle;           /* offset of the pickle that is being scanned */
  xt_pickle_scan_state scan; /* progress of that scan */
} xt_window;

/* Returns the n bytes at `offset`. Returns NULL and sets *need if they are not in the window yet; a window that moves
 * reads `ahead` bytes more. Returns NULL and an error in *status if the file is too short. */
const uint8_t *xt_window_get(xt_checkpoint *c, xt_window *window, uint64_t offset, uint64_t n, size_t ahead,
                             xt_need *need, xt_error *error, xt_status *status);

/* Finds the end of the pickle at `offset`. Returns true once the window holds the whole pickle, which has *size bytes.
 * Returns false with a need or an error, as xt_window_get does. */
bool xt_window_scan_pickle(xt_checkpoint *c, xt_window *window, uint64_t offset, size_t *size, xt_need *need,
                           xt_error *error, xt_status *status);

/* Unpickles data that stays allocated as long as the tree. `at` is its offset in the file, or -1 if it is not stored
 * there as is. */
xt_status xt_open_pickle(xt_checkpoint *c, xt_rebuild *rebuild, const uint8_t *data, size_t size, int64_t at,
                         xt_node **root, xt_error *error);

/* Same as xt_open_pickle for data that contains more after the pickle; sets *used to the length of the pickle. */
xt_status xt_open_first_pickle(xt_checkpoint *c, xt_rebuild *rebuild, const uint8_t *data, size_t size, int64_t at,
                               size_t *used, xt_node **root, xt_error *error);

/* Called when the tree c->root is complete: finds the record of every storage and builds the index. Formats whose
 * records are not named after the keys of the storages fill c->records before. `more` is a second tree to index, or
 * NULL. */
xt_status xt_open_finish(xt_checkpoint *c, uint64_t pickle_size, xt_node *more, xt_error *error);

/* Named records: the layout that the zip and the streaming format share. */
xt_status xt_named_records_begin(xt_checkpoint *c, xt_need *need, xt_error *error);
xt_status xt_named_records_step(xt_checkpoint *c, xt_need *need, xt_error *error);

/* First value of c->state that belongs to xt_named_records_step. Smaller values belong to the format itself, which
 * calls xt_named_records_step for all others. */
enum { XT_NAMED_RECORDS_STATES = 100 };

/* Small text records such as "version". find_text returns a number that identifies the record by its name below the
 * root folder, or 0 if it is not one of them. read_text stores the content in the checkpoint. */
enum { XT_NAMED_RECORDS_MAX_TEXT = 4096 }; /* size limit of such a record */
int xt_named_records_find_text(const char *name, size_t size);
xt_status xt_named_records_read_text(xt_checkpoint *c, int text, const uint8_t *data, size_t size, uint64_t at,
                                     xt_error *error);

/* Reads the list of records of the streaming format into c->directory. The list ends at offset `at`, where the first
 * record begins. `data` must stay allocated as long as the checkpoint. */
xt_status xt_torch_stream_read_list(xt_checkpoint *c, const uint8_t *data, size_t size, uint64_t at, xt_error *error);

/* The pickles of a legacy file. The data of the object and of the keys must stay allocated as long as the checkpoint.
 */
enum { XT_LEGACY_HEADER_PICKLES = 3, XT_LEGACY_PREFIX = 8 };
xt_status xt_legacy_read_header(xt_checkpoint *c, int which, const uint8_t *data, size_t size, uint64_t at,
                                xt_error *error);
xt_status xt_legacy_read_object(xt_checkpoint *c, const uint8_t *data, size_t size, uint64_t at, xt_error *error);
xt_status xt_legacy_read_keys(xt_checkpoint *c, const uint8_t *data, size_t size, uint64_t at, xt_node **keys,
                              xt_error *error);

/* Adds the record of the storage with this key. `bytes` are those at offset `at`: the storage's number of elements,
 * after up to `slack` stray bytes. Sets *storage, and *data_offset to the offset of the first element. */
xt_status xt_legacy_locate_storage(xt_checkpoint *c, const xt_node *key, const uint8_t *bytes, uint64_t slack,
                                   uint64_t at, uint32_t *storage, uint64_t *data_offset, xt_error *error);

/* Reads the size of a safetensors header from the first 8 bytes, and the header. The header must stay allocated as
 * long as the checkpoint. */
enum { XT_SAFETENSORS_PREFIX = 8 };
xt_status xt_safetensors_header_size(const xt_checkpoint *c, const uint8_t *prefix, uint64_t *size, xt_error *error);
xt_status xt_safetensors_read_header(xt_checkpoint *c, const uint8_t *header, size_t size, xt_error *error);

#endif
