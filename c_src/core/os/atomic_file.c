#include "core/os/atomic_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/os/cpu_yield.h"

static const char prefix[] = ".extorch-save-";
enum { MAX_LINKS = 40, TRIES = 20, CHUNK = 512 << 10 };

static xt_status failed(xt_error *error, const char *what, int code) {
  const char *hint = code == ENOENT   ? "there is no such folder"
                     : code == EACCES ? "permission denied"
                     : code == EROFS  ? "the file system is read-only"
                     : code == ENOSPC ? "the disk is full"
                     : code == EDQUOT ? "the disk quota is used up"
                                      : strerror(code);
  xt_status status = code == ENOENT ? XT_STATUS_not_found : code == ENOMEM ? XT_STATUS_no_memory : XT_STATUS_io;
  return xt_error_set(error, status, "the file could not be %s: %s", what, hint);
}

/* ---- Where it goes ---- */

/* Follows links by hand: the last may point to what is not there yet. */
static char *resolve(const char *path) {
  char target[PATH_MAX];
  char *at = strdup(path);
  for (int i = 0; at && i < MAX_LINKS; i++) {
    ssize_t size = readlink(at, target, sizeof target - 1);
    if (size < 0) return at;
    target[size] = 0;
    char *slash = strrchr(at, '/'), *next = NULL;
    if (target[0] == '/' || !slash) next = strdup(target);
    else if (asprintf(&next, "%.*s/%s", (int)(slash - at), at, target) < 0) next = NULL;
    free(at);
    at = next;
  }
  free(at);
  errno = ELOOP;
  return NULL;
}

static xt_status look_at_target(xt_atomic_file *f, xt_error *error) {
  struct stat now;
  if (fstatat(f->folder, f->name, &now, 0)) return errno == ENOENT ? XT_STATUS_ok : failed(error, "examined", errno);
  if (S_ISDIR(now.st_mode)) return xt_error_set(error, XT_STATUS_io, "this is a folder, not a file");
  if (!S_ISREG(now.st_mode))
    return xt_error_set(error, XT_STATUS_io, "this is no regular file; write to it as a stream");
  if (faccessat(f->folder, f->name, W_OK, AT_EACCESS)) return failed(error, "replaced", errno);
  f->replaces = true;
  f->mode = now.st_mode & 07777;
  return XT_STATUS_ok;
}

/* ---- Temporary names ---- */

/* What a save that died left behind: nobody holds its lock. */
static void sweep(int folder) {
  int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (!dir) {
    if (fd >= 0) close(fd);
    return;
  }
  for (struct dirent *entry; (entry = readdir(dir));) {
    const char *rest = entry->d_name + sizeof prefix - 1;
    if (strncmp(entry->d_name, prefix, sizeof prefix - 1) || strlen(rest) != 24 ||
        strspn(rest, "0123456789abcdef") != 24)
      continue;
    int left = openat(folder, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (left < 0) continue;
    if (!flock(left, LOCK_EX | LOCK_NB)) unlinkat(folder, entry->d_name, 0);
    close(left);
  }
  closedir(dir);
}

static void choose_name(xt_atomic_file *f) {
  uint64_t random[2] = {(uint64_t)getpid(), (uint64_t)(uintptr_t)f};
  ssize_t got = getrandom(random, sizeof random, GRND_NONBLOCK);
  (void)got;
  snprintf(f->temporary, sizeof f->temporary, "%s%016llx%08x", prefix, (unsigned long long)random[0],
           (unsigned)random[1]);
}

/* Under a name of ours, locked before anybody can sweep it away. */
static bool create_named(xt_atomic_file *f) {
  for (int i = 0; i < TRIES; i++) {
    struct stat now;
    choose_name(f);
    f->fd = openat(f->folder, f->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0 && errno == EEXIST) continue;
    if (f->fd < 0) return false;
    if (!flock(f->fd, LOCK_EX | LOCK_NB) && !fstat(f->fd, &now) && now.st_nlink) return f->named = true;
    unlinkat(f->folder, f->temporary, 0);
    close(f->fd);
    f->fd = -1;
  }
  errno = EEXIST;
  return false;
}

static bool create(xt_atomic_file *f) {
  f->fd = openat(f->folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (f->fd >= 0) {
    flock(f->fd, LOCK_EX | LOCK_NB); /* nobody else can have it: it has no name */
    return true;
  }
  bool unknown = errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL;
  return unknown && create_named(f);
}

xt_status xt_atomic_file_open(xt_atomic_file *f, const char *path, xt_error *error) {
  *f = (xt_atomic_file){.fd = -1, .folder = -1};
  f->path = resolve(path);
  if (!f->path) return failed(error, "found", errno);
  char *slash = strrchr(f->path, '/');
  f->name = slash ? slash + 1 : f->path;
  if (!*f->name) return xt_error_set(error, XT_STATUS_io, "this is a folder, not a file");
  char *folder = slash ? strndup(f->path, slash == f->path ? 1 : (size_t)(slash - f->path)) : strdup(".");
  if (!folder) return failed(error, "opened", ENOMEM);
  f->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int code = errno;
  free(folder);
  if (f->folder < 0) return failed(error, "written", code);
  xt_status status = look_at_target(f, error);
  if (status != XT_STATUS_ok) return status;
  sweep(f->folder);
  if (!create(f)) return failed(error, "written", errno);
  if (f->replaces) fchmod(f->fd, f->mode);
  return XT_STATUS_ok;
}

/* ---- Bytes ---- */

xt_status xt_atomic_file_write(xt_atomic_file *f, const void *data, size_t size, xt_error *error) {
  const char *at = data;
  while (size) {
    ssize_t wrote = pwrite(f->fd, at, size < CHUNK ? size : CHUNK, f->at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EFAULT)
      return xt_error_set(error, XT_STATUS_file_changed,
                          "a tensor's mapped file was truncated while it was being saved; the old file is as it was");
    if (wrote < 0) return failed(error, "written", errno);
    at += wrote, size -= (size_t)wrote, f->at += wrote;
    xt_cpu_yield();
  }
  return XT_STATUS_ok;
}

/* ---- The end ---- */

/* Gives an unnamed file a name; false with errno. */
static bool link_as(xt_atomic_file *f, const char *name) {
  char self[32];
  snprintf(self, sizeof self, "/proc/self/fd/%d", f->fd);
  return !linkat(AT_FDCWD, self, f->folder, name, AT_SYMLINK_FOLLOW);
}

static bool show(xt_atomic_file *f) {
  if (!f->named) {
    if (!f->replaces && link_as(f, f->name)) return true;
    for (int i = 0; i < TRIES && !f->named; i++) {
      choose_name(f);
      f->named = link_as(f, f->temporary);
      if (!f->named && errno != EEXIST) return false;
    }
  }
  if (!f->named || renameat(f->folder, f->temporary, f->folder, f->name)) return false;
  f->named = false;
  return true;
}

xt_status xt_atomic_file_commit(xt_atomic_file *f, bool sync, xt_error *error) {
  if (sync && fsync(f->fd)) return failed(error, "written to the disk", errno);
  if (!show(f)) return failed(error, "put in its place", errno);
  if (sync && fsync(f->folder) && errno != EINVAL)
    return xt_error_set(error, XT_STATUS_io,
                        "the new file is whole and in its place, but its folder could not be written to the disk: %s",
                        strerror(errno));
  return XT_STATUS_ok;
}

void xt_atomic_file_close(xt_atomic_file *f) {
  if (f->named) unlinkat(f->folder, f->temporary, 0);
  if (f->fd >= 0) close(f->fd);
  if (f->folder >= 0) close(f->folder);
  free(f->path);
  *f = (xt_atomic_file){.fd = -1, .folder = -1};
}
