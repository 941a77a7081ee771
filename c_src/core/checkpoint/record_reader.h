/* Reads the data of records and tensors into regions. */
#ifndef XT_CHECKPOINT_RECORD_READER_H
#define XT_CHECKPOINT_RECORD_READER_H

#include "core/checkpoint/checkpoint.h"
#include "core/memory/region.h"
#include "core/os/file.h"

/* Bytes of the file from the offset `at` on. */
typedef struct {
  uint64_t at;
  xt_region *bytes;
} xt_piece;

typedef struct {
  uint64_t offset, size;
} xt_range;

/* The most ranges that one tensor or record needs: its storage and three parts, with a header each. */
enum { XT_MAX_RANGES = 8 };

/* What a read leaves in the system's page cache: everything, nothing, or nothing if it is larger than half of the
 * memory, because it would push everything else out of the cache. A read that leaves nothing is past the cache where
 * the system can, otherwise it drops what it has read. */
typedef enum { XT_DROP_NOTHING, XT_DROP_ALWAYS, XT_DROP_IF_LARGE } xt_drop;

typedef struct {
  xt_checkpoint *checkpoint;
  const xt_file *file;
  xt_region *memory;  /* used instead of the file if not NULL: its content (a binary, a mapping), shared with tensors */
  uint64_t memory_at; /* file offset where that memory begins */
  const xt_piece *pieces; /* used instead of both if not NULL: the ranges of xt_record_reader_ranges */
  size_t piece_count;
  bool copies;                 /* tensors get copies of it instead */
  bool verify;                 /* check the CRC of every record that is read */
  unsigned readers;            /* threads that read a file (readers.h); 0: as many as are useful */
  unsigned cpus;               /* that readers of a cached file may use */
  uint64_t files;              /* that are read together, such as shards; 0 is one */
  xt_drop drop;                /* whether what was read stays in the system's page cache */
  bool (*stop)(void *context); /* called for about every MiB of work; true stops with an error; may be NULL */
  void *context;
  /* Set by readers.c: */
  bool is_part;            /* this reader reads a part of what was planned */
  bool cold;               /* the bytes have to be read from the disk */
  bool drops;              /* they are not kept in the page cache */
  unsigned run;            /* pieces that a reader takes at a time */
  const xt_file *uncached; /* for xt_file_read_uncached, or NULL */
} xt_record_reader;

/* A tensor in memory: its region, the address of its first element and its strides. The caller drops the region. */
typedef struct {
  xt_region *region;
  uint8_t *data;
  int64_t strides[XT_MAX_DIMS];
} xt_view;

/* Returns an error if the caller wants to stop. */
xt_status xt_record_reader_check_stop(const xt_record_reader *reader, xt_error *error);

/* Adds bytes in memory to a CRC. */
xt_status xt_record_reader_crc(const xt_record_reader *reader, const uint8_t *data, size_t size, uint32_t *crc,
                               xt_error *error);

/* Reads bytes at an offset of the file. */
xt_status xt_record_reader_fetch(const xt_record_reader *reader, uint64_t offset, void *to, size_t size,
                                 xt_error *error);

/* Sets *data to the offset of the record's data, and reads the local header if that is not known yet. */
xt_status xt_record_reader_data_offset(const xt_record_reader *reader, xt_record *entry, uint64_t *data,
                                       xt_error *error);

/* Reads and decompresses a whole record. The caller drops the region. */
xt_status xt_record_reader_whole(const xt_record_reader *reader, xt_record *entry, xt_region **out, xt_error *error);

/* Reads the bytes [from, from + size) of a record's decompressed content. */
xt_status xt_record_reader_range(const xt_record_reader *reader, xt_record *entry, uint64_t from, size_t size, void *to,
                                 xt_error *error);

/* Reads one tensor: all bytes from its first to its last element, or only its rows if that is much less. */
xt_status xt_record_reader_view(const xt_record_reader *reader, const xt_tensor_desc *tensor, xt_view *out,
                                xt_error *error);

/* Sets *out to a tensor whose whole storage is in memory. The caller drops the view's region. */
void xt_record_reader_view_region(xt_region *storage, const xt_tensor_desc *tensor, xt_view *out);

/* Lists the ranges of the file that must be in `pieces` to read a tensor, or a whole record: in file order, neighbors
 * merged. A record that has not been located needs its header too. Returns their number; 0 if the bytes are
 * in memory already. */
size_t xt_record_reader_ranges(const xt_record_reader *reader, const xt_tensor_desc *tensor, xt_range *ranges);
size_t xt_record_reader_record_ranges(const xt_record_reader *reader, const xt_record *record, xt_range *ranges);

/* Reverses the bytes of each element in place. The two parts of a complex number are reversed separately. */
xt_status xt_record_reader_swap(const xt_record_reader *reader, uint8_t *data, size_t size, xt_dtype dtype,
                                xt_error *error);

#endif
