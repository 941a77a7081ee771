/* A file that becomes visible only when it is complete.
 *
 * The data is written to an unnamed file where the file system supports it (O_TMPFILE), otherwise to a file with a
 * recognizable temporary name in the same directory. It is synced and then replaces the old file with one rename. A
 * process that dies leaves nothing behind, or a temporary file that is not locked; the next save into the same
 * directory removes it.
 *
 * The index of a sharded checkpoint has a temporary name of its own kind from the beginning. It lists the shards of the
 * save, so it is kept if the process dies: a later save claims it, and removes these shards first. */
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
  bool named;      /* a file with the temporary name exists */
  bool index;      /* of a sharded checkpoint */
  bool replaces;   /* the target exists */
  uint32_t mode;   /* permissions of the target, if it exists */
  unsigned closed; /* what xt_replaced_file_closed returned when it was opened, or after the last wait */
} xt_atomic_file;

xt_status xt_atomic_file_open(xt_atomic_file *file, const char *path, xt_error *error);

/* Same, for the index of a sharded checkpoint. If the path is a link, the link is replaced and not its target, because
 * shards are in the directory of the link. */
xt_status xt_atomic_file_open_index(xt_atomic_file *file, const char *path, xt_error *error);

/* Opens and locks the temporary file of an index if the process that wrote it is dead. Otherwise *claimed is false, and
 * so it is if the file belongs to another user. */
xt_status xt_atomic_file_claim(xt_atomic_file *file, const char *path, bool *claimed, xt_error *error);

/* The random part of the temporary name: 16 hexadecimal digits. */
const char *xt_atomic_file_id(const xt_atomic_file *file);

xt_status xt_atomic_file_write(xt_atomic_file *file, const void *data, size_t size, xt_error *error);

/* Syncs the file with its temporary name to disk. */
xt_status xt_atomic_file_sync(xt_atomic_file *file, xt_error *error);

/* Syncs the file to disk, if `sync` is set, and makes it visible under its name. */
xt_status xt_atomic_file_commit(xt_atomic_file *file, bool sync, xt_error *error);

/* Closes the file. Its data is discarded unless it was committed or is an index. May be called more than once. */
void xt_atomic_file_close(xt_atomic_file *file);

/* Same, but also discards an index. */
void xt_atomic_file_discard(xt_atomic_file *file);

#endif
