/* Bytes of storages, from where they lie into memory that tensors will own. */
#ifndef XT_CHECKPOINT_RECORD_READER_H
#define XT_CHECKPOINT_RECORD_READER_H

#include "core/checkpoint/checkpoint.h"
#include "core/memory/region.h"
#include "core/os/file.h"

enum { XT_READER_DIMS = 64 };

typedef struct {
  xt_checkpoint *checkpoint;
  const xt_file *file;
  xt_region *memory;  /* instead of the file: its bytes in memory (a binary, a map), which tensors may share */
  uint64_t memory_at; /* where in the file that memory begins */
  bool verify;        /* check the CRC of every record that is read */
  bool (*stop)(void *context);
  void *context; /* polled every few MiB: the caller is gone */
} xt_record_reader;

/* A tensor's memory: a region, where in it the tensor begins, and its strides there. The caller drops the region. */
typedef struct {
  xt_region *region;
  uint8_t *data;
  int64_t strides[XT_READER_DIMS];
} xt_view;

xt_status xt_record_reader_fetch(const xt_record_reader *reader, uint64_t offset, void *to, size_t size,
                                 xt_error *error);

/* Where a record's data begins. */
xt_status xt_record_reader_data_offset(const xt_record_reader *reader, xt_record *entry, uint64_t *data,
                                       xt_error *error);

/* A whole record, unpacked. The caller drops the region. */
xt_status xt_record_reader_whole(const xt_record_reader *reader, xt_record *entry, xt_region **out, xt_error *error);

/* Bytes [from, from + size) of a record, unpacked. */
xt_status xt_record_reader_range(const xt_record_reader *reader, xt_record *entry, uint64_t from, size_t size, void *to,
                                 xt_error *error);

/* Just what one tensor sees: its span, or only its rows where the span is much larger. */
xt_status xt_record_reader_view(const xt_record_reader *reader, const xt_tensor_desc *tensor, xt_view *out,
                                xt_error *error);

/* A tensor over its whole storage, which is in memory. The caller drops the view's region. */
void xt_record_reader_view_region(xt_region *storage, const xt_tensor_desc *tensor, xt_view *out);

/* The bytes of the file that xt_record_reader_view will want for a tensor of a record whose data begins at `data`. */
void xt_record_reader_span(const xt_record_reader *reader, const xt_tensor_desc *tensor, uint64_t data,
                           uint64_t *offset, uint64_t *size);

/* Turns the bytes of elements round in place: complex numbers by their halves. */
void xt_record_reader_swap(uint8_t *data, size_t size, xt_dtype dtype);

/* Is the address good for the dtype's elements? */
bool xt_record_reader_aligned(const void *data, xt_dtype dtype);

#endif
