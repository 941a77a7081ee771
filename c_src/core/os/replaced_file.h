/* Large files that are replaced by others.
 *
 * When nobody has a file without a name open any more, the system frees its blocks and its pages in the cache, which
 * takes about 0.1 ms for each MiB. So whoever replaces a large file holds it before, and releases it afterwards: then a
 * thread closes it, and nobody waits. */
#ifndef XT_OS_REPLACED_FILE_H
#define XT_OS_REPLACED_FILE_H

#include <stdbool.h>

/* Holds the file with this name in a directory. Returns a descriptor, or -1 if there is none, if it is small, or if the
 * directory is shared with other hosts. */
int xt_replaced_file_hold(int directory, const char *name);

/* Closes the descriptor, on a thread of its own if that can be started. */
void xt_replaced_file_release(int fd);

/* Waits until the files that were released are closed, for up to some seconds. Returns true if there were any and they
 * are closed now: a disk that was full may have room. */
bool xt_replaced_file_wait(void);

#endif
