/* A local file, read with pread. Interrupted and short reads are continued. A file that has changed since it was opened
 * is an error. */
#ifndef XT_OS_FILE_H
#define XT_OS_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

typedef struct {
  int fd;                  /* -1 if not open */
  uint64_t size, modified; /* when it was opened: bytes, and time of the last change */
  bool is_directory;       /* why it could not be opened */
} xt_file;

xt_status xt_file_open(xt_file *file, const char *path, xt_error *error);

/* Opens an open file once more. The system reads ahead for each of the two on its own. Returns false if it cannot; the
 * file itself can be used then. */
bool xt_file_reopen(const xt_file *file, xt_file *again);

/* Same, for xt_file_read_uncached. */
bool xt_file_reopen_uncached(const xt_file *file, xt_file *again);

xt_status xt_file_read(const xt_file *file, uint64_t offset, void *to, size_t size, xt_error *error);

/* The unit in which bytes can be read past the page cache. */
enum { XT_FILE_BLOCK = 4096 };

/* Reads bytes from the disk into the memory itself, past the page cache. Returns false if the system cannot, or if
 * there are not as many bytes: xt_file_read does it then, or finds the error. Whole blocks need an address that is
 * congruent to the offset modulo XT_FILE_BLOCK. */
bool xt_file_read_uncached(const xt_file *uncached, uint64_t offset, void *to, size_t size);

/* Reads bytes that the page cache has. Returns false, without waiting, if it does not have all of them or the system
 * cannot tell. */
bool xt_file_read_cached(const xt_file *file, uint64_t offset, void *to, size_t size);

/* Returns true if a read of the byte at the offset would wait for the disk; false also if the system cannot tell. */
bool xt_file_waits(const xt_file *file, uint64_t offset);

/* Asks the system to read bytes that will be needed soon, all of them at once. */
void xt_file_prefetch(const xt_file *file, uint64_t offset, uint64_t size);

/* Asks the system to drop pages from its cache. Those at the ends of the range stay if it has only a part of them. */
void xt_file_uncache(const xt_file *file, uint64_t offset, uint64_t size);

/* Checks that the file has not changed since it was opened. */
xt_status xt_file_check(const xt_file *file, xt_error *error);

void xt_file_close(xt_file *file);

#endif
