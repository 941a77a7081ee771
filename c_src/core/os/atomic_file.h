/* A file that becomes visible only when it is complete.
 *
 * The data is written to an unnamed file where the file system supports it (O_TMPFILE), otherwise to a file with a
 * recognizable temporary name in the same directory. It is synced and then replaces the old file with one rename. A
 * process that dies leaves nothing behind, or a temporary file that is not locked; the next save into the same
 * directory removes it. */
#ifndef XT_OS_ATOMIC_FILE_H
#define XT_OS_ATOMIC_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

typedef struct {
  int fd, directory; /* -1 if not open */
  uint64_t offset;   /* where the next write goes */
  char *path;        /* of the target, with links resolved */
  char *name;        /* last component of path */
  char temporary[48];
  bool named;    /* a file with the temporary name exists */
  bool replaces; /* the target exists */
  uint32_t mode; /* permissions of the target, if it exists */
} xt_atomic_file;

xt_status xt_atomic_file_open(xt_atomic_file *file, const char *path, xt_error *error);
xt_status xt_atomic_file_write(xt_atomic_file *file, const void *data, size_t size, xt_error *error);

/* Syncs the file to disk, if `sync` is set, and makes it visible under its name. */
xt_status xt_atomic_file_commit(xt_atomic_file *file, bool sync, xt_error *error);

/* Closes the file and discards its data unless it was committed. May be called more than once. */
void xt_atomic_file_close(xt_atomic_file *file);

#endif
