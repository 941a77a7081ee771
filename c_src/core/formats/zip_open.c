/* Opens a zip checkpoint. */
#include "core/formats/zip.h"

#include <string.h>

#include "core/formats/named_records.h"
#include "core/formats/npy.h"

enum { START, TAIL, DIRECTORY, RECORDS, MEMBERS }; /* members of an npz file */

typedef struct {
  xt_zip zip;
  uint8_t *tail, *directory;
  xt_named_records records;
  xt_npz npz;
} work;

/* A file whose records all have 0 as their CRC was written without checksums. */
static void find_checksums(xt_checkpoint *c) {
  bool any = false, data = false;
  for (size_t i = 0; i < c->directory.count; i++) {
    data |= c->directory.list[i].size > 0;
    any |= c->directory.list[i].crc != 0;
  }
  c->checksums = any || !data ? XT_CHECKSUMS_PRESENT : XT_CHECKSUMS_ABSENT;
  for (size_t i = 0; i < c->directory.count; i++) c->directory.list[i].has_crc = c->checksums == XT_CHECKSUMS_PRESENT;
}

/* The directory of an archive with few records is in the tail. */
static xt_status get_directory(xt_opening *o, work *w, uint64_t tail_at, xt_need *need, xt_error *error) {
  if (w->zip.directory < tail_at)
    return xt_opening_request(o, &w->directory, w->zip.directory, w->zip.directory_size, need, error);
  w->directory = w->tail + (w->zip.directory - tail_at);
  return XT_STATUS_ok;
}

static xt_status open(xt_opening *o, xt_need *need, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  size_t tail_size = c->file_size < XT_ZIP_TAIL ? c->file_size : XT_ZIP_TAIL;
  work *w = o->work;
  xt_status status;
  int state = o->state++;
  switch (state) {
  case START: return xt_opening_request(o, &w->tail, c->file_size - tail_size, tail_size, need, error);
  case TAIL:
    status = xt_zip_find_directory(&w->zip, w->tail, tail_size, c->file_size, error);
    return status == XT_STATUS_ok ? get_directory(o, w, c->file_size - tail_size, need, error) : status;
  case DIRECTORY:
    status = xt_zip_read_directory(&w->zip, w->directory, &c->arena, &c->directory, error);
    if (status != XT_STATUS_ok) return status;
    find_checksums(c);
    state = xt_npz_matches(&c->directory) ? MEMBERS : RECORDS;
    if (state == MEMBERS) c->format = &xt_npz_format;
  }
  o->state = state;
  return state == MEMBERS ? xt_npz_open(o, &w->npz, need, error) : xt_named_records_open(o, &w->records, need, error);
}

static xt_match matches(const uint8_t *head, size_t size) {
  return size >= 4 && !memcmp(head, "PK\3\4", 4) ? XT_MATCH_YES : XT_MATCH_NO;
}

const xt_format xt_zip_format = {
    .name = "zip",
    .compresses = true,
    .matches = matches,
    .signature = 4,
    .open_size = sizeof(work),
    .open = open,
    .header_size = xt_zip_local_size,
    .locate = xt_zip_check_local,
    .max_padding = XT_ZIP_MAX_EXTRA,
    .push = &xt_zip_push,
};

static xt_match never(const uint8_t *head, size_t size) {
  (void)head, (void)size;
  return XT_MATCH_NO; /* the zip format finds out when it has read the directory */
}

const xt_format xt_npz_format = {
    .name = "npz",
    .compresses = true,
    .matches = never,
    .open_size = sizeof(work),
    .open = open,
    .header_size = xt_zip_local_size,
    .locate = xt_zip_check_local,
    .max_padding = XT_ZIP_MAX_EXTRA,
    .push = &xt_zip_push,
};
