/* Directories: a lock that the kernel releases when its holder dies, their names, and whether other hosts may use them.
 */
#ifndef XT_OS_DIRECTORY_H
#define XT_OS_DIRECTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"

/* Tries to lock the directory, without waiting. The lock is the open descriptor *fd: it leaves no file behind, and
 * closing releases it. *fd is -1 if another descriptor holds the lock. On file systems without locks the call succeeds
 * and locks nothing. */
xt_status xt_directory_lock(const char *path, int *fd, xt_error *error);
void xt_directory_unlock(int fd);

/* Calls `visit` for each name until it returns false. */
xt_status xt_directory_list(const char *path, bool (*visit)(void *context, const char *name), void *context,
                            xt_error *error);

/* Returns true if the descriptor is on a file system of which another host may see the files but not the locks. */
bool xt_directory_shared(int fd);

/* Identifies the running kernel. Locks are reliable between processes of one kernel, on every file system. */
uint32_t xt_directory_host(void);

#endif
