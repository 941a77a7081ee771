/* What the formats share while a checkpoint is being opened. Each is one file, and one function that is called again
 * whenever the bytes it asked for have come. */
#ifndef XT_FORMATS_FORMAT_H
#define XT_FORMATS_FORMAT_H

#include "core/checkpoint/checkpoint.h"
#include "core/pickle/scan.h"

struct xt_format {
  const char *name;
  bool anywhere; /* may begin in the middle of a file, after another save */
  /* state 0 at first, with the beginning of the file in c->head */
  xt_status (*step)(xt_checkpoint *c, xt_need *need, xt_error *error);
};

extern const xt_format xt_zip_format, xt_legacy_format, xt_tar_format, xt_torch_stream_format, xt_safetensors_format,
    xt_plain_pickle_format, xt_gzip_format;

xt_status xt_open_no_memory(xt_error *error);

/* Zeroed memory that lives as long as the checkpoint; NULL when there is none. */
void *xt_open_alloc(xt_checkpoint *c, size_t size);

/* Memory for bytes of the file, and the need that fills it. The size was compared with the file's before. */
xt_status xt_open_ask(xt_checkpoint *c, uint8_t **buffer, uint64_t offset, uint64_t size, xt_need *need,
                      xt_error *error);

/* A part of the file that grows or moves as reading goes on. */
typedef struct {
  uint8_t *data;
  uint64_t at;
  size_t size, room;
  uint64_t pickle;           /* whose end is looked for */
  xt_pickle_scan_state scan; /* and how far that has come */
} xt_window;

/* The n bytes at an offset: NULL with a need when they are not in the window, or with an error when the file has not so
 * many. Where the window has to move it brings `ahead` bytes more. */
const uint8_t *xt_window_get(xt_checkpoint *c, xt_window *window, uint64_t offset, uint64_t n, size_t ahead,
                             xt_need *need, xt_error *error, xt_status *status);

/* Finds the end of the pickle at an offset, which the window then holds whole: *size bytes. false as above. */
bool xt_window_pickle(xt_checkpoint *c, xt_window *window, uint64_t offset, size_t *size, xt_need *need,
                      xt_error *error, xt_status *status);

/* Reads a pickle whose bytes are kept; `at` is where they lie in the file, -1 when nowhere. */
xt_status xt_open_pickle(xt_checkpoint *c, xt_rebuild *rebuild, const uint8_t *data, size_t size, int64_t at,
                         xt_node **root, xt_error *error);

/* The same for a pickle that others follow; *used is its length. */
xt_status xt_open_first_pickle(xt_checkpoint *c, xt_rebuild *rebuild, const uint8_t *data, size_t size, int64_t at,
                               size_t *used, xt_node **root, xt_error *error);

/* The tree is complete: gives every storage its record and lists the tensors. Formats whose records are not named by
 * their storages' keys have filled c->records themselves. */
xt_status xt_open_finish(xt_checkpoint *c, uint64_t pickle_size, xt_node *more, xt_error *error);

/* Archives (zip and streaming format) keep their parts as named records. */
xt_status xt_named_records_begin(xt_checkpoint *c, xt_need *need, xt_error *error);
xt_status xt_named_records_step(xt_checkpoint *c, xt_need *need, xt_error *error);
enum { XT_NAMED_RECORDS_STATES = 100 }; /* its states are from here on */

/* The small texts of an archive, by their name below the root folder: 0 when it is none of them. */
enum { XT_NAMED_RECORDS_TEXT = 4096 }; /* the longest */
int xt_named_records_text(const char *name, size_t size);
xt_status xt_named_records_take_text(xt_checkpoint *c, int text, const uint8_t *data, size_t size, uint64_t at,
                                     xt_error *error);

/* What a stream's list of records says; it ends at `at`, where the first of them begins. The bytes are kept. */
xt_status xt_torch_stream_read_list(xt_checkpoint *c, const uint8_t *data, size_t size, uint64_t at, xt_error *error);

/* The parts of a legacy file. A small pickle (which: 0 to 2) is only looked at, the object becomes the tree; keys are
 * those of the storages that follow, each behind the number of its elements. The bytes of both are kept. */
enum { XT_LEGACY_SMALL = 3, XT_LEGACY_PREFIX = 8 };
xt_status xt_legacy_read_small(xt_checkpoint *c, int which, const uint8_t *data, size_t size, uint64_t at,
                               xt_error *error);
xt_status xt_legacy_read_object(xt_checkpoint *c, const uint8_t *data, size_t size, uint64_t at, xt_error *error);
xt_status xt_legacy_read_keys(xt_checkpoint *c, const uint8_t *data, size_t size, uint64_t at, xt_node **keys,
                              xt_error *error);

/* Which storage a key is of, and where its elements begin: the count stands in `bytes`, perhaps after up to `slack`
 * others. */
xt_status xt_legacy_locate_storage(xt_checkpoint *c, const xt_node *key, const uint8_t *bytes, uint64_t slack,
                                   uint64_t at, uint32_t *storage, uint64_t *data_offset, xt_error *error);

/* A safetensors file: its header's size from its first 8 bytes, and the header, whose bytes are kept. */
enum { XT_SAFETENSORS_PREFIX = 8 };
xt_status xt_safetensors_header_size(const xt_checkpoint *c, const uint8_t *prefix, uint64_t *size, xt_error *error);
xt_status xt_safetensors_read_header(xt_checkpoint *c, const uint8_t *header, size_t size, xt_error *error);

#endif
