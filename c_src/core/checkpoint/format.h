/* The interface of a format: one struct, which says how its files are recognized, how they are opened, where their
 * records lie and how they are read as a stream. formats/detect.c has the list of all formats. */
#ifndef XT_CHECKPOINT_FORMAT_H
#define XT_CHECKPOINT_FORMAT_H

#include "core/checkpoint/opening.h"
#include "core/checkpoint/push.h"

typedef enum { XT_MATCH_NO, XT_MATCH_YES, XT_MATCH_MORE } xt_match; /* MORE: more bytes are needed to decide */

struct xt_format {
  const char *name;   /* the atom in the metadata of a checkpoint */
  bool at_any_offset; /* a save may start at any offset of the file, for example after another save */
  bool whole_file;    /* `open` is called when checkpoint->memory has the whole file */
  bool compresses;    /* records may be compressed, so the size of a storage does not tell that of its record */

  /* ---- Recognizing ---- */

  /* Whether a file with these first bytes is in this format. XT_MATCH_MORE counts as yes if there are no more bytes. */
  xt_match (*matches)(const uint8_t *head, size_t size);

  /* Whether the errors of this format describe a file that is in no format exactly; may be NULL. */
  bool (*resembles)(const uint8_t *head, size_t size);

  /* Number of first bytes of a stream with which to ask `matches`. 0 if a stream in this format begins with a pickle,
   * which is passed to `matches` as a whole, or cannot be recognized before XT_DETECT_SIZE bytes. */
  size_t signature;

  /* ---- Opening ---- */

  size_t open_size; /* size of `opening->work`, which is zeroed at first and freed when the checkpoint is open */

  /* Called first with opening->state 0, and again after each need is filled. Sets a need, or checkpoint->root. */
  xt_status (*open)(xt_opening *opening, xt_need *need, xt_error *error);

  /* ---- Records ---- */

  /* A record may have a header in front of its data, which is read when the record is first read. NULL if the data
   * offsets are known when the checkpoint is open. header_size is the number of bytes that locate needs; the data
   * begins up to max_padding bytes after them. */
  size_t (*header_size)(const xt_record *record);
  xt_status (*locate)(const xt_record *record, const uint8_t *header, uint64_t *data, xt_error *error);
  size_t max_padding;

  /* ---- Streams ---- */

  const xt_push_parser *push; /* NULL if the format cannot be read as a stream */
  const char *without_stream; /* what to do instead, if it cannot */
};

#endif
