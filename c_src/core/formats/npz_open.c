/* Opens an npz file. */
#include <inttypes.h>
#include <libdeflate.h>
#include <string.h>

#include "core/base/printable.h"
#include "core/base/utf8.h"
#include "core/formats/inflate_prefix.h"
#include "core/formats/npy.h"
#include "core/formats/zip.h"

enum { SUFFIX = 4 /* .npy */, AHEAD = 16 << 10, FIRST_PACKED = 1024 };

static bool is_array(const xt_record *record) {
  return record->name_size > SUFFIX && !memcmp(record->name + record->name_size - SUFFIX, ".npy", SUFFIX);
}

bool xt_npz_matches(const xt_records *directory) {
  for (size_t i = 0; i < directory->count; i++)
    if (is_array(&directory->list[i])) return !xt_records_find(directory, "data.pkl", 8);
  return false;
}

static xt_status misfit(const xt_record *record, const char *name, xt_error *error) {
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header,
                     "the array %s does not fit its record, which has %" PRIu64 " bytes", name, record->size);
}

/* Returns the first n bytes of a record's content, whose data begins at `data`. Returns NULL with a need or an error.
 */
static const uint8_t *get_content(xt_opening *o, xt_npz *w, const xt_record *record, uint64_t data, size_t n,
                                  xt_need *need, xt_error *error, xt_status *status) {
  if (record->method == XT_RECORD_STORED) return xt_window_get(o, &w->window, data, n, AHEAD, need, error, status);
  size_t size = 0;
  if (!w->unpacked) w->unpacked = xt_arena_alloc(&o->checkpoint->arena, XT_NPY_MAX_HEADER + XT_NPY_PREFIX, 1);
  if (!w->unpacked) return *status = xt_opening_no_memory(error), NULL;
  for (;; w->packed_size *= 2) {
    if (!w->packed_size) w->packed_size = FIRST_PACKED;
    size_t packed = w->packed_size < record->packed ? w->packed_size : (size_t)record->packed;
    const uint8_t *bytes = xt_window_get(o, &w->window, data, packed, AHEAD, need, error, status);
    if (!bytes) return NULL;
    bool valid = xt_inflate_prefix(bytes, packed, w->unpacked, n, &size);
    if (valid && size == n) return w->unpacked;
    if (valid && packed < record->packed) continue;
    *status = xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header,
                          "the compressed data of the record %s is invalid; download the file again",
                          xt_printable_text(record->name, record->name_size).text);
    return NULL;
  }
}

static xt_status add_array(xt_opening *o, const xt_npz *w, const xt_record *record, const uint8_t *header,
                           size_t header_size, const char *name, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  size_t key_size = record->name_size - SUFFIX;
  xt_npy_header h;
  xt_status status = xt_npy_read_header(header, header_size, name, &h, error);
  if (status != XT_STATUS_ok) return status;
  if (h.bytes != record->size - header_size) return misfit(record, name, error);
  if (header_size % xt_dtype_get(h.dtype)->size)
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)record->header,
                       "the npy header of %s has %zu bytes, which is no multiple of the size of an element; write the "
                       "file again with numpy",
                       name, header_size);
  if (xt_utf8_check((const uint8_t *)record->name, key_size) != XT_UTF8_VALID)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header, "the name of the array %s is not valid UTF-8",
                       name);
  xt_node *key = xt_node_new_text(&c->arena, record->name, key_size), *tensor = NULL;
  status = xt_npy_add_tensor(o, &h, record->name, key_size, header_size, record->size, &tensor, error);
  if (status != XT_STATUS_ok) return status;
  return key && xt_node_append(&c->arena, w->root, key) && xt_node_append(&c->arena, w->root, tensor)
             ? XT_STATUS_ok
             : xt_opening_no_memory(error);
}

/* Reads the header of one array. */
static xt_status read_array(xt_opening *o, xt_npz *w, xt_record *record, xt_need *need, xt_error *error) {
  xt_printable name = xt_printable_text(record->name, record->name_size);
  size_t header_size = 0, local_size = xt_zip_local_size(record);
  uint64_t data = 0;
  xt_status status = xt_record_check_method(record, error);
  if (status != XT_STATUS_ok) return status;
  const uint8_t *bytes = xt_window_get(o, &w->window, record->header, local_size, AHEAD, need, error, &status);
  if (!bytes) return status;
  status = xt_checkpoint_locate(o->checkpoint, record, bytes, &data, error);
  if (status != XT_STATUS_ok) return status;
  if (record->size < XT_NPY_PREFIX) return misfit(record, name.text, error);
  bytes = get_content(o, w, record, data, XT_NPY_PREFIX, need, error, &status);
  if (!bytes) return status;
  status = xt_npy_header_size(bytes, name.text, &header_size, error);
  if (status != XT_STATUS_ok) return status;
  if (record->size < header_size) return misfit(record, name.text, error);
  bytes = get_content(o, w, record, data, header_size, need, error, &status);
  if (!bytes) return status;
  /* the record of an empty array is not read again */
  if (o->verify && record->size == header_size)
    status = xt_record_verify(record, libdeflate_crc32(0, bytes, header_size), error);
  if (status == XT_STATUS_ok) status = add_array(o, w, record, bytes, header_size, name.text, error);
  w->packed_size = 0;
  w->next++;
  return status;
}

static xt_status finish(xt_opening *o, const xt_npz *w, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  c->root = w->root;
  if (!xt_opening_reserve_records(o)) return xt_opening_no_memory(error);
  for (size_t i = 0, storage = 0; i < c->directory.count; i++)
    if (is_array(&c->directory.list[i])) c->records[storage++] = &c->directory.list[i];
  return xt_opening_finish(o, NULL, error);
}

xt_status xt_npz_open(xt_opening *o, xt_npz *w, xt_need *need, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  xt_status status = XT_STATUS_ok;
  if (!w->root) w->root = xt_node_new(&c->arena, XT_NODE_DICT);
  if (!w->root || !xt_storages_reserve(&c->storages, c->directory.count)) return xt_opening_no_memory(error);
  while (status == XT_STATUS_ok && !need->size && w->next < c->directory.count) {
    xt_record *record = &c->directory.list[w->next];
    if (is_array(record)) status = read_array(o, w, record, need, error);
    else w->next++;
  }
  return status == XT_STATUS_ok && !need->size ? finish(o, w, error) : status;
}
