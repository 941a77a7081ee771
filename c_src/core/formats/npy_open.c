/* Opens an npy file. */
#include <inttypes.h>
#include <string.h>

#include "core/formats/npy.h"

enum { START, HEADER };

typedef struct {
  uint8_t *header;
  size_t header_size;
} work;

/* Sets the strides of a contiguous array. Sizes of 0 count as 1. */
static void set_strides(const xt_npy_header *h, int64_t *strides) {
  int64_t step = 1;
  for (uint32_t i = 0; i < h->ndim; i++) {
    uint32_t d = h->fortran_order ? i : h->ndim - 1 - i;
    strides[d] = step;
    if (h->bytes) step *= h->sizes[d];
  }
}

xt_status xt_npy_add_tensor(xt_opening *o, const xt_npy_header *h, const char *key, size_t key_size,
                            uint64_t header_size, uint64_t storage_size, xt_node **tensor, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  uint64_t item = xt_dtype_get(h->dtype)->size;
  int64_t strides[XT_MAX_DIMS];
  xt_storage_view view = {.count = -1};
  *tensor = xt_node_new_tensor(&c->arena);
  if (!*tensor) return xt_opening_no_memory(error);
  xt_status status =
      xt_storages_add(&c->storages, key, key_size, h->dtype, (int64_t)(storage_size / item), 0, &view.index, error);
  if (status != XT_STATUS_ok) return status;
  c->storages.list[view.index].big_endian = h->big_endian;
  set_strides(h, strides);
  return xt_tensor_desc_set_strided((*tensor)->tensor, &c->storages, &view, (int64_t)(header_size / item), h->sizes,
                                    strides, h->ndim, 0, error);
}

xt_status xt_npy_describe(xt_opening *o, const uint8_t *data, size_t size, uint64_t at, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  xt_npy_header h;
  bool duplicate;
  xt_status status = xt_npy_read_header(data, size, "the array", &h, error);
  if (status != XT_STATUS_ok) return status;
  if (!o->size_unknown && h.bytes > c->file_size - at - size)
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)c->file_size,
                       "the array ends at byte %" PRIu64 " but the file has only %" PRIu64
                       " bytes, probably an incomplete download; download it again",
                       at + size + h.bytes, c->file_size);
  status = xt_npy_add_tensor(o, &h, "array", 5, 0, h.bytes, &c->root, error);
  if (status != XT_STATUS_ok) return status;
  c->big_endian = h.big_endian;
  if (!xt_opening_reserve_records(o) || !xt_records_reserve(&c->directory, &c->arena, 1, true))
    return xt_opening_no_memory(error);
  c->records[0] = xt_records_add_stored(&c->directory, "array", 5, at + size, h.bytes, &duplicate);
  if (!c->records[0]) return xt_opening_no_memory(error);
  uint64_t end = at + size + h.bytes;
  if (!o->size_unknown && end < c->file_size) c->next = end;
  return xt_opening_finish(o, NULL, error);
}

static xt_status open(xt_opening *o, xt_need *need, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  work *w = o->work;
  if (o->state++ == HEADER) return xt_npy_describe(o, w->header, w->header_size, c->base, error);
  if (o->head_size < XT_NPY_PREFIX)
    return xt_error_set(error, XT_STATUS_truncated, "the npy file is truncated; download it again");
  xt_status status = xt_npy_header_size(o->head, "the array", &w->header_size, error);
  if (status != XT_STATUS_ok) return status;
  if (w->header_size > c->file_size - c->base)
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)c->file_size,
                       "the npy header has %zu bytes but the file has only %" PRIu64
                       ", probably an incomplete download; download it again",
                       w->header_size, c->file_size);
  return xt_opening_request(o, &w->header, c->base, w->header_size, need, error);
}

static xt_match matches(const uint8_t *head, size_t size) {
  size_t known = size < 6 ? size : 6;
  if (memcmp(head, XT_NPY_MAGIC, known)) return XT_MATCH_NO;
  return known == 6 ? XT_MATCH_YES : XT_MATCH_MORE;
}

const xt_format xt_npy_format = {
    .name = "npy",
    .at_any_offset = true,
    .matches = matches,
    .signature = 6,
    .open_size = sizeof(work),
    .open = open,
    .push = &xt_npy_push,
};
