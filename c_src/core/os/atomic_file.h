/* A file that appears whole or not at all.
 *
 * It is written without a name where the file system can do that (O_TMPFILE), else under a recognisable one in the same
 * folder; synced; and only then put in the place of the old file. A process that dies leaves nothing, or a file of ours
 * that nobody holds a lock on: the next save into the folder removes it. */
#ifndef XT_OS_ATOMIC_FILE_H
#define XT_OS_ATOMIC_FILE_H

#include <stddef.h>
#include <sys/types.h>

#include "core/base/error.h"

typedef struct {
  int fd, folder;
  off_t at;
  char *path; /* of the file itself: links are resolved */
  char *name; /* its last part */
  char temporary[48];
  bool named; /* the temporary name exists */
  bool replaces;
  mode_t mode; /* of the file it replaces */
} xt_atomic_file;

xt_status xt_atomic_file_open(xt_atomic_file *file, const char *path, xt_error *error);
xt_status xt_atomic_file_write(xt_atomic_file *file, const void *data, size_t size, xt_error *error);

/* Makes it durable, unless sync is false, and visible. */
xt_status xt_atomic_file_commit(xt_atomic_file *file, bool sync, xt_error *error);

/* Closes; what was not committed is gone. Once is enough, twice does no harm. */
void xt_atomic_file_close(xt_atomic_file *file);

#endif
