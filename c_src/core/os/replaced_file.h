/* Large files that are replaced by others.
 *
 * When the last descriptor of an unlinked file is closed, the system frees its blocks and its pages in the cache, which
 * takes about 0.1 ms for each MiB. The caller therefore holds the old file and releases it after the rename; a thread
 * closes it, and the caller does not wait. */
#ifndef XT_OS_REPLACED_FILE_H
#define XT_OS_REPLACED_FILE_H

#include <stdbool.h>

/* Holds the file with this name in a directory. Returns a descriptor, or -1 if there is none, if it is small, or if the
 * directory is shared with other hosts. */
int xt_replaced_file_hold(int directory, const char *name);

/* Closes the descriptor, on a thread of its own if that can be started. */
void xt_replaced_file_release(int fd);

/* Returns how many files have been closed so far. */
unsigned xt_replaced_file_closed(void);

/* For a call that failed because the disk is full: waits until the files that were released are closed, for up to some
 * seconds. Returns true if any has been closed since that count was taken, and takes it again: there may be room now.
 */
bool xt_replaced_file_wait(unsigned *closed);

#endif
