/* Opens a zip checkpoint. */
#include "core/formats/zip.h"

#include "core/formats/named_records.h"

enum { START, TAIL, DIRECTORY };

typedef struct {
  xt_zip zip;
  uint8_t *tail, *directory;
} work;

static xt_status step(xt_checkpoint *c, xt_need *need, xt_error *error) {
  size_t tail_size = c->file_size < XT_ZIP_TAIL ? c->file_size : XT_ZIP_TAIL;
  work *w = c->work;
  xt_status status;
  switch (c->state) {
  case START:
    w = c->work = xt_open_alloc(c, sizeof *w);
    if (!w) return xt_open_no_memory(error);
    c->state = TAIL;
    return xt_open_request(c, &w->tail, c->file_size - tail_size, tail_size, need, error);
  case TAIL:
    status = xt_zip_find_directory(&w->zip, w->tail, tail_size, c->file_size, error);
    if (status != XT_STATUS_ok) return status;
    c->state = DIRECTORY;
    return xt_open_request(c, &w->directory, w->zip.directory, w->zip.directory_size, need, error);
  case DIRECTORY:
    status = xt_zip_read_directory(&w->zip, w->directory, &c->arena, &c->directory, error);
    return status == XT_STATUS_ok ? xt_named_records_begin(c, need, error) : status;
  default: return xt_named_records_step(c, need, error);
  }
}

const xt_format xt_zip_format = {"zip", false, step};
