#include "core/os/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_READ = 1 << 30 }; /* macOS refuses to read 2 GiB or more at once */

static xt_status failed(xt_error *error, const char *what, int code) {
  const char *reason = code == ENOENT ? "no such file" : code == EACCES ? "permission denied" : strerror(code);
  xt_status status = code == ENOENT ? XT_STATUS_not_found : XT_STATUS_io;
  return xt_error_set(error, status, "the file could not be %s: %s", what, reason);
}

/* Returns the time of the last change in nanoseconds. It is only compared, so it may wrap around. */
static uint64_t modified(const struct stat *status) {
#ifdef __APPLE__
  const struct timespec *time = &status->st_mtimespec;
#else
  const struct timespec *time = &status->st_mtim;
#endif
  return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec;
}

xt_status xt_file_open(xt_file *file, const char *path, xt_error *error) {
  struct stat status;
  file->is_directory = false;
  file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a FIFO must not block */
  if (file->fd < 0) return failed(error, "opened", errno);
  if (fstat(file->fd, &status)) return failed(error, "inspected", errno);
  file->is_directory = S_ISDIR(status.st_mode);
  if (file->is_directory) return xt_error_set(error, XT_STATUS_io, "the path is a directory, expected a file");
  if (!S_ISREG(status.st_mode))
    return xt_error_set(error, XT_STATUS_io, "not a regular file; read it with ExTorch.Streaming");
  file->size = (uint64_t)status.st_size;
  file->modified = modified(&status);
  return XT_STATUS_ok;
}

static bool reopen(const xt_file *file, int flags, xt_file *again) {
  *again = *file;
#ifdef __linux__
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file->fd);
  again->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
#else
  (void)flags;
  again->fd = -1;
#endif
  return again->fd >= 0;
}

bool xt_file_reopen(const xt_file *file, xt_file *again) { return reopen(file, 0, again); }

bool xt_file_reopen_uncached(const xt_file *file, xt_file *again) {
#ifdef O_DIRECT
  return reopen(file, O_DIRECT, again);
#else
  again->fd = -1;
  (void)file;
  return false;
#endif
}

xt_status xt_file_check(const xt_file *file, xt_error *error) {
  struct stat status;
  if (fstat(file->fd, &status)) return failed(error, "inspected", errno);
  if ((uint64_t)status.st_size != file->size || modified(&status) != file->modified)
    return xt_error_set(error, XT_STATUS_file_changed,
                        "the file has changed since it was opened (%llu bytes then, %llu now); open it again",
                        (unsigned long long)file->size, (unsigned long long)status.st_size);
  return XT_STATUS_ok;
}

xt_status xt_file_read(const xt_file *file, uint64_t offset, void *to, size_t size, xt_error *error) {
  char *at = to;
  while (size) {
    ssize_t got = pread(file->fd, at, size < MAX_READ ? size : MAX_READ, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(error, "read", errno);
    if (got == 0) {
      xt_status status = xt_file_check(file, error);
      return status != XT_STATUS_ok
                 ? status
                 : xt_error_at(error, XT_STATUS_truncated, (int64_t)offset, "unexpected end of file");
    }
    at += got, size -= (size_t)got, offset += (uint64_t)got;
  }
  return XT_STATUS_ok;
}

/* Blocks that the range has only a part of are read into `block`. */
bool xt_file_read_uncached(const xt_file *uncached, uint64_t offset, void *to, size_t size) {
  _Alignas(XT_FILE_BLOCK) char block[XT_FILE_BLOCK];
  for (char *at = to; size;) {
    size_t skip = offset % XT_FILE_BLOCK, part = XT_FILE_BLOCK - skip < size ? XT_FILE_BLOCK - skip : size;
    bool is_part = part < XT_FILE_BLOCK;
    if (!is_part && (uintptr_t)at % XT_FILE_BLOCK) return false;
    ssize_t got = is_part ? pread(uncached->fd, block, sizeof block, (off_t)(offset - skip))
                          : pread(uncached->fd, at, size - size % XT_FILE_BLOCK, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 || (size_t)got < skip + part) return false;
    if (is_part) memcpy(at, block + skip, part);
    else part = (size_t)got - (size_t)got % XT_FILE_BLOCK;
    at += part, size -= part, offset += part;
  }
  return true;
}

bool xt_file_read_cached(const xt_file *file, uint64_t offset, void *to, size_t size) {
#ifdef RWF_NOWAIT
  struct iovec bytes = {to, size};
  return preadv2(file->fd, &bytes, 1, (off_t)offset, RWF_NOWAIT) == (ssize_t)size;
#else
  (void)file, (void)offset, (void)to, (void)size;
  return false;
#endif
}

bool xt_file_waits(const xt_file *file, uint64_t offset) {
#ifdef RWF_NOWAIT
  char byte;
  struct iovec bytes = {&byte, 1};
  return preadv2(file->fd, &bytes, 1, (off_t)offset, RWF_NOWAIT) < 0 && errno == EAGAIN;
#else
  (void)file, (void)offset;
  return false;
#endif
}

void xt_file_prefetch(const xt_file *file, uint64_t offset, uint64_t size) {
#ifdef __APPLE__
  struct radvisory range = {(off_t)offset, size < MAX_READ ? (int)size : MAX_READ};
  fcntl(file->fd, F_RDADVISE, &range);
#else
  posix_fadvise(file->fd, (off_t)offset, (off_t)size, POSIX_FADV_WILLNEED);
#endif
}

void xt_file_uncache(const xt_file *file, uint64_t offset, uint64_t size) {
#ifdef __APPLE__
  (void)file, (void)offset, (void)size;
#else
  posix_fadvise(file->fd, (off_t)offset, (off_t)size, POSIX_FADV_DONTNEED);
#endif
}

void xt_file_close(xt_file *file) {
  if (file->fd >= 0) close(file->fd);
  file->fd = -1;
}
