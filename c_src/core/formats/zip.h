/* The zip format: torch.save since 1.6, TorchScript and C++ archives.
 *
 * All numbers are little-endian. The file contains:
 *
 *   1. Once per record:
 *      a. local header: "PK\3\4" · version u16 · flags u16 · method u16 · time u16 · date u16 · crc u32 ·
 *         compressed size u32 · size u32 · name size u16 · extra size u16 · name · extra
 *      b. data, stored (method 0) or deflated (method 8)
 *      c. descriptor, if flag 8 is set: "PK\7\10" · crc u32 · compressed size · size, both u32 or both u64.
 *         The crc and sizes of the local header are 0 then.
 *   2. Central directory, one entry per record: "PK\1\2" · version made by u16 · version u16 · flags u16 · method u16 ·
 *      time u16 · date u16 · crc u32 · compressed size u32 · size u32 · name size u16 · extra size u16 ·
 *      comment size u16 · disk u16 · attributes u16 + u32 · offset of the local header u32 · name · extra · comment
 *   3. Zip64 end record and locator (torch always writes them):
 *      a. "PK\6\6" · size of the rest u64 · versions 2 × u16 · disks 2 × u32 · entries on this disk u64 · entries u64 ·
 *         directory size u64 · directory offset u64
 *      b. "PK\6\7" · disk u32 · offset of the zip64 end record u64 · number of disks u32
 *   4. End record: "PK\5\6" · disks 2 × u16 · entries on this disk u16 · entries u16 · directory size u32 ·
 *      directory offset u32 · comment size u16 · comment
 *   5. Bytes that were appended to the file, at most about 64 KiB, which are ignored
 *
 * A field whose value does not fit is saturated (0xFFFF or 0xFFFFFFFF). Its value is then in the zip64 end record or in
 * the entry's zip64 extra field: id 1 u16 · length u16 · those of size, compressed size and offset that are saturated.
 *
 * torch writes stored records with flags 0x0808 (descriptor, UTF-8) and pads the extra field with "FB" · length u16 ·
 * "ZZ…" so that the data begins at a multiple of 64. Empty records have no descriptor. In the local header of a record
 * above 4 GiB the 32-bit sizes are 0, not saturated.
 *
 * The functions work on memory that the caller provides; offsets are offsets in the file. The directory is accepted
 * only if there is one end record, no duplicate name and no overlap, and every range is inside the file. A record's
 * local header is compared with the directory when the record is read.
 */
#ifndef XT_FORMATS_ZIP_H
#define XT_FORMATS_ZIP_H

#include "core/checkpoint/format.h"
#include "core/checkpoint/saver.h"

extern const xt_format xt_zip_format;
extern const xt_push_parser xt_zip_push;
extern const xt_format_writer xt_zip_write;

/* ---- Writing; npz files are written by the same functions ---- */

/* Write what is before and after the data of a record whose name ends in a NUL. `at` is the offset of its header. */
void xt_zip_put_header(xt_saver *s, const char *name, uint64_t size);
void xt_zip_finish_record(xt_saver *s, const char *name, uint64_t size, uint32_t crc, uint64_t at);

/* Writes the central directory and the end records. */
void xt_zip_put_end(xt_saver *s);

/* ---- The central directory ---- */

enum {
  XT_ZIP_TAIL = 66 * 1024, /* the end record is within this many bytes of the end, even with the longest comment */
  XT_ZIP_LOCAL_SIZE = 30,  /* size of a local header without name and extra */
  XT_ZIP_MAX_EXTRA = UINT16_MAX, /* size of the longest extra field */
  XT_ZIP_DESCRIPTOR_WINDOW = 28  /* size of the longest descriptor and the signature after it */
};

typedef struct {
  uint64_t file_size;
  uint64_t directory, directory_size; /* offset and size of the central directory */
  uint64_t entry_count;               /* number of entries according to the end record */
} xt_zip;

/* Finds the end record in the last XT_ZIP_TAIL bytes of the file, or in the whole file if it is shorter. */
xt_status xt_zip_find_directory(xt_zip *zip, const uint8_t *tail, size_t tail_size, uint64_t file_size,
                                xt_error *error);

/* Reads the central directory into `records`, which point into it. */
xt_status xt_zip_read_directory(const xt_zip *zip, const uint8_t *directory, xt_arena *arena, xt_records *records,
                                xt_error *error);

/* Compares a local header with the directory and sets *data to the offset of the record's data. `local` has
 * xt_zip_local_size bytes. */
size_t xt_zip_local_size(const xt_record *entry);
xt_status xt_zip_check_local(const xt_record *entry, const uint8_t *local, uint64_t *data, xt_error *error);

/* ---- Reading forward, before the directory is known ---- */

/* Reads a local header of which `size` bytes are available, at least XT_ZIP_LOCAL_SIZE. Sets *needed to its full size;
 * *record and *has_sizes are valid only if that is not more than `size`. Without *has_sizes, the sizes are in the
 * descriptor after the data. */
xt_status xt_zip_read_local(const uint8_t *local, size_t size, uint64_t at, xt_record *record, bool *has_sizes,
                            size_t *needed, xt_error *error);

/* Reads the descriptor of a record with `packed` bytes of data, from XT_ZIP_DESCRIPTOR_WINDOW available bytes. Returns
 * its size, or 0 if the bytes are not a descriptor of that record followed by a header. */
size_t xt_zip_read_descriptor(const uint8_t *bytes, uint64_t packed, xt_record *record);

/* Returns the size of the directory entry or end record that begins here. Returns 0 if more bytes are needed,
 * *needed in total, or, with *needed 0, if it is neither. */
size_t xt_zip_directory_part(const uint8_t *bytes, size_t size, size_t *needed, bool *is_entry, bool *is_last);

#endif
