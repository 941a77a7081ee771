#include "core/checkpoint/record_reader.h"

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/format.h"
#include "core/checkpoint/readers.h"
#include "core/memory/memory.h"

enum {
  PIECE = 1 << 20,       /* bytes in memory between two checks whether to stop */
  CRC_PIECE = 256 << 10, /* fits into the CPU cache */
  RUN_COST = 16,         /* what a run of adjacent elements costs besides its bytes, in bytes */
  WINDOW = 256 << 10,    /* bytes read at once while gathering rows that are close together */
  MAX_GAP = 16 << 10,    /* maximum distance of such rows */
  DENSE = 4,             /* a span of up to this many times the tensor's size is read as a whole */
  SMALL_SPAN = 64 << 10, /* so is any span of up to this size */
  ALIGNMENT = 16
};

xt_status xt_record_reader_check_stop(const xt_record_reader *r, xt_error *error) {
  if (!r->stop || !r->stop(r->context)) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_stopping, "the read was stopped by the caller");
}

/* ---- Bytes ---- */

static bool contains(const xt_piece *piece, uint64_t offset, uint64_t size) {
  return offset >= piece->at && offset - piece->at <= piece->bytes->size &&
         size <= piece->bytes->size - (offset - piece->at);
}

/* Returns the bytes at an offset of the file if they are in memory, else NULL, and sets *region to the region. */
static uint8_t *in_memory(const xt_record_reader *r, uint64_t offset, uint64_t size, xt_region **region) {
  xt_piece whole = {r->memory_at, r->memory};
  const xt_piece *pieces = r->pieces ? r->pieces : &whole;
  size_t count = r->pieces ? r->piece_count : r->memory != NULL;
  for (size_t i = 0; i < count; i++) {
    if (!contains(&pieces[i], offset, size)) continue;
    *region = pieces[i].bytes;
    return pieces[i].bytes->data + (offset - pieces[i].at);
  }
  return NULL;
}

static xt_status copy(const xt_record_reader *r, void *to, const void *from, size_t size, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  for (size_t at = 0; at < size && status == XT_STATUS_ok; at += PIECE) {
    if (at) status = xt_record_reader_check_stop(r, error);
    memcpy((char *)to + at, (const char *)from + at, size - at < PIECE ? size - at : PIECE);
  }
  return status;
}

static bool is_in_memory(const xt_record_reader *r, uint64_t offset) {
  return offset >= XT_INLINE || r->memory || r->pieces;
}

xt_status xt_record_reader_fetch(const xt_record_reader *r, uint64_t offset, void *to, size_t size, xt_error *error) {
  if (offset >= XT_INLINE) return copy(r, to, (const void *)(uintptr_t)(offset - XT_INLINE), size, error);
  if (r->memory || r->pieces) {
    xt_region *region;
    const uint8_t *from = in_memory(r, offset, size, &region);
    if (!from)
      return xt_error_at(
          error, XT_STATUS_truncated, (int64_t)offset,
          "the file ends before the end of a record, probably an incomplete download; download it again");
    return copy(r, to, from, size, error);
  }
  return xt_readers_fetch(r, offset, to, size, NULL, error);
}

xt_status xt_record_reader_crc(const xt_record_reader *r, const uint8_t *data, size_t size, uint32_t *crc,
                               xt_error *error) {
  xt_status status = XT_STATUS_ok;
  for (size_t at = 0; at < size && status == XT_STATUS_ok; at += CRC_PIECE) {
    if (at) status = xt_record_reader_check_stop(r, error);
    *crc = libdeflate_crc32(*crc, data + at, size - at < CRC_PIECE ? size - at : CRC_PIECE);
  }
  return status;
}

xt_status xt_record_reader_data_offset(const xt_record_reader *r, xt_record *entry, uint64_t *data, xt_error *error) {
  uint8_t small[256], *header = small;
  xt_status status = XT_STATUS_ok;
  xt_need need = xt_checkpoint_locate_need(r->checkpoint, entry);
  if (need.size > sizeof small) header = malloc(need.size);
  if (!header) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while reading the header of a record");
  if (need.size) status = xt_record_reader_fetch(r, need.offset, header, need.size, error);
  if (status == XT_STATUS_ok) status = xt_checkpoint_locate(r->checkpoint, entry, header, data, error);
  if (header != small) free(header);
  return status;
}

static xt_status inflate_into(const xt_record_reader *r, xt_record *entry, uint64_t data, uint8_t *to,
                              xt_error *error) {
  void *packed = xt_memory_alloc(entry->packed ? entry->packed : 1);
  if (!packed) return xt_region_refused(error);
  xt_status status = xt_record_reader_fetch(r, data, packed, entry->packed, error);
  if (status == XT_STATUS_ok) status = xt_record_inflate(entry, packed, to, error);
  xt_memory_free(packed);
  return status;
}

/* Reads the data of a record that is not compressed and checks its CRC. */
static xt_status read_verified(const xt_record_reader *r, const xt_record *entry, uint64_t data, uint8_t *to,
                               xt_error *error) {
  uint32_t crc = 0;
  xt_status status;
  if (is_in_memory(r, data)) {
    status = xt_record_reader_fetch(r, data, to, entry->size, error);
    if (status == XT_STATUS_ok) status = xt_record_reader_crc(r, to, entry->size, &crc, error);
  } else {
    status = xt_readers_fetch(r, data, to, entry->size, &crc, error);
  }
  return status == XT_STATUS_ok ? xt_record_verify(entry, crc, error) : status;
}

xt_status xt_record_reader_whole(const xt_record_reader *r, xt_record *entry, xt_region **out, xt_error *error) {
  uint64_t data;
  xt_status status = xt_record_check_method(entry, error);
  if (status == XT_STATUS_ok) status = xt_record_reader_data_offset(r, entry, &data, error);
  if (status != XT_STATUS_ok) return status;
  /* an address congruent with the file offset reads faster, but the data must be aligned */
  xt_region *region = xt_region_new(entry->size ? entry->size : 1, data % 16 ? 0 : data);
  if (!region) return xt_region_refused(error);
  if (entry->method == XT_RECORD_DEFLATED) status = inflate_into(r, entry, data, region->data, error);
  else if (r->verify) status = read_verified(r, entry, data, region->data, error);
  else status = xt_record_reader_fetch(r, data, region->data, entry->size, error);
  if (status != XT_STATUS_ok) xt_region_drop(region);
  else *out = region;
  return status;
}

xt_status xt_record_reader_range(const xt_record_reader *r, xt_record *entry, uint64_t from, size_t size, void *to,
                                 xt_error *error) {
  uint64_t data;
  if (from > entry->size || size > entry->size - from)
    return xt_error_set(error, XT_STATUS_bad_argument, "the range ends at byte %llu but the record has only %llu bytes",
                        (unsigned long long)(from + size), (unsigned long long)entry->size);
  if (entry->method == XT_RECORD_STORED && !r->verify) {
    xt_status status = xt_record_reader_data_offset(r, entry, &data, error);
    return status == XT_STATUS_ok ? xt_record_reader_fetch(r, data + from, to, size, error) : status;
  }
  xt_region *whole;
  xt_status status = xt_record_reader_whole(r, entry, &whole, error);
  if (status != XT_STATUS_ok) return status;
  memcpy(to, whole->data + from, size);
  xt_region_drop(whole);
  return status;
}

static void swap_items(uint8_t *data, size_t size, size_t item) {
  for (; size >= item; data += item, size -= item)
    for (size_t i = 0; i < item / 2; i++) {
      uint8_t byte = data[i];
      data[i] = data[item - 1 - i];
      data[item - 1 - i] = byte;
    }
}

xt_status xt_record_reader_swap(const xt_record_reader *r, uint8_t *data, size_t size, xt_dtype dtype,
                                xt_error *error) {
  size_t item = xt_dtype_get(dtype)->size;
  xt_status status = XT_STATUS_ok;
  if (xt_dtype_get(dtype)->kind == XT_KIND_COMPLEX) item /= 2;
  for (size_t at = 0; item > 1 && at < size && status == XT_STATUS_ok; at += PIECE) {
    if (at) status = xt_record_reader_check_stop(r, error);
    swap_items(data + at, size - at < PIECE ? size - at : PIECE, item);
  }
  return status;
}

/* ---- Views ---- */

/* The dimensions of a view, sorted by decreasing stride. In this order the elements are read from the file without
 * going back. The strides of the result account for a transposed view. */
typedef struct {
  int64_t numel, span; /* span: number of elements from the first to the last */
  int64_t run;         /* number of adjacent elements in the innermost dimensions */
  uint32_t outer;      /* number of the other dimensions, which come first in `dims` */
  uint32_t dims[XT_MAX_DIMS];
} layout;

static layout layout_of(const xt_tensor_desc *t) {
  layout l = {.numel = 1, .span = 1, .run = 1, .outer = t->ndim};
  for (uint32_t d = 0; d < t->ndim; d++) {
    l.numel *= t->sizes[d];
    l.span += t->sizes[d] ? (t->sizes[d] - 1) * t->strides[d] : 0;
    uint32_t at = d;
    for (; at > 0 && t->strides[l.dims[at - 1]] < t->strides[d]; at--) l.dims[at] = l.dims[at - 1];
    l.dims[at] = d;
  }
  if (!l.numel) l.span = 0;
  for (; l.outer > 0; l.outer--) {
    uint32_t d = l.dims[l.outer - 1];
    if (t->sizes[d] != 1 && t->strides[d] != l.run) break;
    l.run *= t->sizes[d];
  }
  return l;
}

/* Computes the strides of the elements when they are adjacent in that order. */
static void gathered_strides(const xt_tensor_desc *t, const layout *l, int64_t *strides) {
  int64_t step = 1;
  for (uint32_t i = t->ndim; i-- > 0;) {
    strides[l->dims[i]] = step;
    step *= t->sizes[l->dims[i]];
  }
}

/* Returns true if the elements are not in ascending order when they are visited in the order of the layout. A window
 * would then be read again and again. */
static bool overlaps(const xt_tensor_desc *t, const layout *l) {
  int64_t inner = l->run; /* span of the dimensions inside */
  for (uint32_t i = l->outer; i-- > 0;) {
    uint32_t d = l->dims[i];
    if (t->sizes[d] > 1 && t->strides[d] < inner) return true;
    inner += (t->sizes[d] - 1) * t->strides[d];
  }
  return false;
}

/* Reads one run after the other. Those of a file are read through a window if they are small and close together. */
static xt_status gather(const xt_record_reader *r, const xt_tensor_desc *t, const layout *l, uint64_t base, uint8_t *to,
                        xt_error *error) {
  size_t item = xt_dtype_get(t->dtype)->size, run = (size_t)l->run * item;
  int64_t index[XT_MAX_DIMS] = {0};
  uint64_t window_at = 0, window_end = 0, end = base + (uint64_t)l->span * item;
  xt_status status = XT_STATUS_ok;
  uint64_t step = l->outer ? (uint64_t)t->strides[l->dims[l->outer - 1]] * item : 0;
  bool windowed = !is_in_memory(r, base) && run < MAX_GAP && step < MAX_GAP;
  size_t work = 0; /* since the last check whether to stop */
  uint8_t *window = windowed ? malloc(WINDOW) : NULL;
  if (windowed && !window) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while reading a tensor");
  for (int64_t runs = l->numel / l->run; runs-- > 0 && status == XT_STATUS_ok; to += run) {
    uint64_t at = base;
    work += run + RUN_COST;
    if (work >= PIECE && (work = 0, status = xt_record_reader_check_stop(r, error)) != XT_STATUS_ok) break;
    for (uint32_t i = 0; i < l->outer; i++) at += (uint64_t)(index[i] * t->strides[l->dims[i]]) * item;
    if (!windowed) {
      status = xt_record_reader_fetch(r, at, to, run, error);
    } else {
      if (at < window_at || at + run > window_end) {
        window_at = at;
        window_end = end - at < WINDOW ? end : at + WINDOW;
        status = xt_record_reader_fetch(r, window_at, window, window_end - window_at, error);
      }
      if (status == XT_STATUS_ok) memcpy(to, window + (at - window_at), run);
    }
    for (uint32_t i = l->outer; i-- > 0 && ++index[i] == t->sizes[l->dims[i]];) index[i] = 0;
  }
  free(window);
  return status;
}

static xt_status whole_record_view(const xt_record_reader *r, const xt_tensor_desc *t, xt_record *record, xt_view *out,
                                   xt_error *error) {
  xt_status status = xt_record_reader_whole(r, record, &out->region, error);
  if (status != XT_STATUS_ok) return status;
  out->data = out->region->data + (uint64_t)t->offset * xt_dtype_get(t->dtype)->size;
  memcpy(out->strides, t->strides, t->ndim * sizeof *t->strides);
  return status;
}

/* Shares the memory of the file if its bytes can be used as they are. */
static bool shared_view(const xt_record_reader *r, const xt_tensor_desc *t, uint64_t start, size_t bytes,
                        xt_view *out) {
  xt_region *region;
  out->data = r->copies ? NULL : in_memory(r, start, bytes, &region);
  if (!out->data || !bytes || !xt_dtype_aligned(out->data, t->dtype)) return false;
  out->region = xt_region_keep(region);
  memcpy(out->strides, t->strides, t->ndim * sizeof *t->strides);
  return true;
}

/* Swaps the bytes of the view's region. Drops the region if that was stopped. */
static xt_status swap_view(const xt_record_reader *r, xt_view *view, size_t size, xt_dtype dtype, xt_error *error) {
  xt_status status = xt_record_reader_swap(r, view->region->data, size, dtype, error);
  if (status == XT_STATUS_ok) return status;
  xt_region_drop(view->region);
  view->region = NULL;
  return status;
}

/* Copies a view that needs less than half of its region, so that the rest is freed. */
static xt_status trim_view(xt_view *view, uint64_t span, xt_error *error) {
  if (span >= view->region->size / 2) return XT_STATUS_ok;
  xt_region *whole = view->region;
  view->region = xt_region_new(span, 0);
  if (view->region) view->data = memcpy(view->region->data, view->data, span);
  xt_region_drop(whole);
  return view->region ? XT_STATUS_ok : xt_region_refused(error);
}

xt_status xt_record_reader_view(const xt_record_reader *r, const xt_tensor_desc *t, xt_view *out, xt_error *error) {
  xt_record *record = r->checkpoint->records[t->storage];
  size_t item = xt_dtype_get(t->dtype)->size;
  layout l = layout_of(t);
  uint64_t data = 0;
  bool swap = record && xt_checkpoint_needs_swap(r->checkpoint, t->storage) && l.numel;
  xt_status status;
  memset(out, 0, sizeof *out);
  if (!record) return xt_error_set(error, XT_STATUS_unsupported, "the tensor is on the device meta and has no data");
  if (!l.numel) {
    out->region = xt_region_new(1, 0);
    if (!out->region) return xt_region_refused(error);
    out->data = out->region->data;
    memcpy(out->strides, t->strides, t->ndim * sizeof *t->strides);
    return XT_STATUS_ok;
  }
  if (record->method == XT_RECORD_DEFLATED || r->verify) {
    status = whole_record_view(r, t, record, out, error);
    if (status == XT_STATUS_ok && swap)
      status = swap_view(r, out, record->size, r->checkpoint->storages.list[t->storage].element, error);
    return status == XT_STATUS_ok ? trim_view(out, (uint64_t)l.span * item, error) : status;
  }
  status = xt_record_reader_data_offset(r, record, &data, error);
  if (status != XT_STATUS_ok) return status;
  uint64_t start = data + (uint64_t)t->offset * item, span = (uint64_t)l.span * item, bytes = (uint64_t)l.numel * item;
  if (!swap && shared_view(r, t, start, span, out)) return XT_STATUS_ok;
  bool whole = span <= SMALL_SPAN || span <= bytes * DENSE || (!is_in_memory(r, start) && overlaps(t, &l));
  out->region = xt_region_new(whole ? span : bytes, whole && start % item == 0 && start < XT_INLINE ? start : 0);
  if (!out->region) return xt_region_refused(error);
  out->data = out->region->data;
  if (whole) memcpy(out->strides, t->strides, t->ndim * sizeof *t->strides);
  else gathered_strides(t, &l, out->strides);
  status = whole ? xt_record_reader_fetch(r, start, out->data, span, error) : gather(r, t, &l, start, out->data, error);
  if (status == XT_STATUS_ok && swap) return swap_view(r, out, out->region->size, t->dtype, error);
  if (status != XT_STATUS_ok) {
    xt_region_drop(out->region);
    out->region = NULL;
  }
  return status;
}

void xt_record_reader_view_region(xt_region *storage, const xt_tensor_desc *t, xt_view *out) {
  bool empty = false;
  for (uint32_t d = 0; d < t->ndim; d++) empty |= t->sizes[d] == 0;
  out->region = xt_region_keep(storage);
  out->data = storage->data + (empty ? 0 : (uint64_t)t->offset * xt_dtype_get(t->dtype)->size);
  memcpy(out->strides, t->strides, t->ndim * sizeof *t->strides);
}

/* ---- Ranges ---- */

/* Adds the bytes [from, from + size) of a record's packed data. If it has not been located, its data may begin up to
 * max_padding bytes later than right after the header. These ranges begin at a multiple of ALIGNMENT, because torch
 * aligns data in the file: then a tensor can share the bytes. */
static size_t add_record_range(const xt_record_reader *r, const xt_record *record, uint64_t from, uint64_t size,
                               xt_range *ranges, size_t count) {
  uint64_t data = atomic_load(&record->data_offset);
  if (data >= XT_INLINE) return count;
  if (data) {
    ranges[count] = (xt_range){data + from, size};
    return count + (size > 0);
  }
  xt_need header = xt_checkpoint_locate_need(r->checkpoint, record);
  uint64_t start = header.offset - header.offset % ALIGNMENT, end = header.offset + header.size;
  ranges[count++] = (xt_range){start, end - start};
  start = end + from - (end + from) % ALIGNMENT;
  end += from + size + r->checkpoint->format->max_padding;
  if (end > record->end) end = record->end;
  if (size && end > start) ranges[count++] = (xt_range){start, end - start};
  return count;
}

static int compare_ranges(const void *a, const void *b) {
  const xt_range *x = a, *y = b;
  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Sorts the ranges and merges those that are close together. */
static size_t merge_ranges(xt_range *ranges, size_t count) {
  size_t merged = 0;
  qsort(ranges, count, sizeof *ranges, compare_ranges);
  for (size_t i = 1; i < count; i++) {
    xt_range *last = &ranges[merged];
    uint64_t end = last->offset + last->size, next_end = ranges[i].offset + ranges[i].size;
    if (ranges[i].offset > end + MAX_GAP) ranges[++merged] = ranges[i];
    else if (next_end > end) last->size = next_end - last->offset;
  }
  return count ? merged + 1 : 0;
}

/* Adds what xt_record_reader_view reads of a tensor's own storage. */
static size_t add_view_range(const xt_record_reader *r, const xt_tensor_desc *t, xt_range *ranges, size_t count) {
  const xt_record *record = t->storage == XT_NO_STORAGE ? NULL : r->checkpoint->records[t->storage];
  uint64_t item = xt_dtype_get(t->dtype)->size, span = (uint64_t)layout_of(t).span * item;
  if (!record || !span) return count;
  bool whole = record->method == XT_RECORD_DEFLATED || r->verify;
  return add_record_range(r, record, whole ? 0 : (uint64_t)t->offset * item, whole ? record->packed : span, ranges,
                          count);
}

size_t xt_record_reader_ranges(const xt_record_reader *r, const xt_tensor_desc *t, xt_range *ranges) {
  size_t count = t->layout == XT_LAYOUT_STRIDED ? add_view_range(r, t, ranges, 0) : 0;
  for (uint32_t part = 0; part < t->part_count; part++) count = add_view_range(r, t->more->parts[part], ranges, count);
  return merge_ranges(ranges, count);
}

size_t xt_record_reader_record_ranges(const xt_record_reader *r, const xt_record *record, xt_range *ranges) {
  return merge_ranges(ranges, add_record_range(r, record, 0, record->packed, ranges, 0));
}
