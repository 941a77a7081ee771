#include "core/os/atomic_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/os/directory.h"
#include "core/os/random.h"
#include "core/os/replaced_file.h"

/* A temporary name is a prefix, then 8 digits for the host and 16 random ones, all hexadecimal. */
static const char file_prefix[] = ".extorch-save-", index_prefix[] = ".extorch-index-";
enum { HOST_DIGITS = 8, DIGITS = 24, MAX_LINKS = 40, TRIES = 20, CHUNK = 4 << 20, DAY = 86400 };

static xt_status failed(xt_error *error, const char *what, int code) {
  const char *reason = code == ENOENT   ? "no such directory"
                       : code == EACCES ? "permission denied"
                       : code == EROFS  ? "the file system is read-only"
                       : code == ENOSPC ? "the disk is full"
                       : code == EDQUOT ? "the disk quota is exceeded"
                                        : strerror(code);
  xt_status status = code == ENOENT ? XT_STATUS_not_found : code == ENOMEM ? XT_STATUS_no_memory : XT_STATUS_io;
  return xt_error_set(error, status, "the file could not be %s: %s", what, reason);
}

/* ---- The target ---- */

/* Resolves links one by one, since realpath fails if the last one points to a file that does not exist yet. */
static char *resolve(const char *path) {
  char target[PATH_MAX];
  char *resolved = strdup(path);
  for (int i = 0; resolved && i < MAX_LINKS; i++) {
    ssize_t size = readlink(resolved, target, sizeof target - 1);
    if (size < 0) return resolved;
    target[size] = 0;
    char *slash = strrchr(resolved, '/'), *next = NULL;
    if (target[0] == '/' || !slash) next = strdup(target);
    else if (asprintf(&next, "%.*s/%s", (int)(slash - resolved), resolved, target) < 0) next = NULL;
    free(resolved);
    resolved = next;
  }
  free(resolved);
  errno = ELOOP;
  return NULL;
}

static xt_status inspect_target(xt_atomic_file *f, xt_error *error) {
  struct stat target;
  if (fstatat(f->directory, f->name, &target, f->index ? AT_SYMLINK_NOFOLLOW : 0))
    return errno == ENOENT ? XT_STATUS_ok : failed(error, "inspected", errno);
  if (S_ISLNK(target.st_mode)) return XT_STATUS_ok;
  if (S_ISDIR(target.st_mode)) return xt_error_set(error, XT_STATUS_io, "the path is a directory, expected a file");
  if (!S_ISREG(target.st_mode))
    return xt_error_set(error, XT_STATUS_io, "not a regular file; write to it with ExTorch.Streaming");
  if (faccessat(f->directory, f->name, W_OK, AT_EACCESS)) return failed(error, "replaced", errno);
  f->replaces = true;
  f->mode = (uint32_t)target.st_mode & 07777;
  return XT_STATUS_ok;
}

/* ---- Temporary names ---- */

/* Returns the digits of a temporary name, or NULL if it is another name. */
static const char *digits_of(const char *name, const char *prefix) {
  size_t length = strlen(prefix);
  const char *digits = name + length;
  bool ours =
      !strncmp(name, prefix, length) && strlen(digits) == DIGITS && strspn(digits, "0123456789abcdef") == DIGITS;
  return ours ? digits : NULL;
}

/* Opens a temporary file and locks it, if its writer has died: a writer holds the lock. Where locks may not reach other
 * hosts, the writer must have been on this one, or the file unchanged for a day. Some file systems can lock only what
 * is open for writing. Returns -1 otherwise. */
static int open_dead(int directory, const char *name, const char *digits) {
  struct stat status;
  char host[HOST_DIGITS + 1];
  int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, fd = openat(directory, name, O_RDWR | flags);
  if (fd < 0) fd = openat(directory, name, O_RDONLY | flags);
  if (fd < 0) return -1;
  snprintf(host, sizeof host, "%08x", (unsigned)xt_directory_host());
  if (!flock(fd, LOCK_EX | LOCK_NB) && !fstat(fd, &status) &&
      (!xt_directory_shared(fd) || !strncmp(digits, host, HOST_DIGITS) || time(NULL) - status.st_mtime > DAY))
    return fd;
  close(fd);
  return -1;
}

/* Removes the temporary files of processes that died. */
static void sweep(int directory) {
  int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (!dir) {
    if (fd >= 0) close(fd);
    return;
  }
  for (struct dirent *entry; (entry = readdir(dir));) {
    const char *digits = digits_of(entry->d_name, file_prefix);
    int dead = digits ? open_dead(directory, entry->d_name, digits) : -1;
    if (dead < 0) continue;
    unlinkat(directory, entry->d_name, 0);
    close(dead);
  }
  closedir(dir);
}

static void choose_name(xt_atomic_file *f) {
  uint64_t random;
  xt_random_fill(&random, sizeof random);
  snprintf(f->temporary, sizeof f->temporary, "%s%08x%016llx", f->index ? index_prefix : file_prefix,
           (unsigned)xt_directory_host(), (unsigned long long)random);
}

const char *xt_atomic_file_id(const xt_atomic_file *f) { return strrchr(f->temporary, '-') + 1 + HOST_DIGITS; }

/* Creates the file with a temporary name. Another process may sweep it away before it is locked: then it has no link
 * left, and another name is tried. */
static bool create_named(xt_atomic_file *f) {
  for (int i = 0; i < TRIES; i++) {
    struct stat created;
    choose_name(f);
    f->fd = openat(f->directory, f->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0 && errno == EEXIST) continue;
    if (f->fd < 0) return false;
    if (!flock(f->fd, LOCK_EX | LOCK_NB) && !fstat(f->fd, &created) && created.st_nlink) return f->named = true;
    unlinkat(f->directory, f->temporary, 0);
    close(f->fd);
    f->fd = -1;
  }
  errno = EEXIST;
  return false;
}

#ifdef O_TMPFILE

static bool create_unnamed(xt_atomic_file *f) {
  f->fd = openat(f->directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (f->fd < 0) return false;
  flock(f->fd, LOCK_EX | LOCK_NB); /* cannot fail: no other process can open a file without a name */
  return true;
}

/* Gives the unnamed file a name. On failure returns false and sets errno. */
static bool link_as(xt_atomic_file *f, const char *name) {
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", f->fd);
  return !linkat(AT_FDCWD, path, f->directory, name, AT_SYMLINK_FOLLOW);
}

#else /* all files are named */

static bool create_unnamed(xt_atomic_file *f) { return (void)f, errno = EOPNOTSUPP, false; }
static bool link_as(xt_atomic_file *f, const char *name) { return (void)f, (void)name, errno = EOPNOTSUPP, false; }

#endif

/* Whether a call that has just failed can be tried again, because a large file that was replaced is closed by now.
 * Keeps errno. */
static bool may_have_room(xt_atomic_file *f) {
  int code = errno;
  bool again = (code == ENOSPC || code == EDQUOT) && xt_replaced_file_wait(&f->closed);
  errno = code;
  return again;
}

static bool create(xt_atomic_file *f) {
  if (f->index) return create_named(f);
  if (create_unnamed(f)) return true;
  bool unsupported = errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL;
  return unsupported && create_named(f);
}

/* Takes over `path`. */
static xt_status open_directory(xt_atomic_file *f, char *path, xt_error *error) {
  f->path = path;
  f->closed = xt_replaced_file_closed();
  if (!path) return failed(error, "resolved", errno);
  char *slash = strrchr(path, '/');
  f->name = slash ? slash + 1 : path;
  if (!*f->name) return xt_error_set(error, XT_STATUS_io, "the path is a directory, expected a file");
  char *directory = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
  if (!directory) return failed(error, "opened", ENOMEM);
  f->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int code = errno;
  free(directory);
  return f->directory < 0 ? failed(error, "written", code) : XT_STATUS_ok;
}

static xt_status open_target(xt_atomic_file *f, char *path, xt_error *error) {
  xt_status status = open_directory(f, path, error);
  if (status == XT_STATUS_ok) status = inspect_target(f, error);
  if (status != XT_STATUS_ok) return status;
  sweep(f->directory);
  while (!create(f))
    if (!may_have_room(f)) return failed(error, "written", errno);
  if (f->replaces) fchmod(f->fd, (mode_t)f->mode);
  return XT_STATUS_ok;
}

xt_status xt_atomic_file_open(xt_atomic_file *f, const char *path, xt_error *error) {
  *f = (xt_atomic_file){.fd = -1, .directory = -1};
  return open_target(f, resolve(path), error);
}

xt_status xt_atomic_file_open_index(xt_atomic_file *f, const char *path, xt_error *error) {
  *f = (xt_atomic_file){.fd = -1, .directory = -1, .index = true};
  return open_target(f, strdup(path), error);
}

xt_status xt_atomic_file_claim(xt_atomic_file *f, const char *path, bool *claimed, xt_error *error) {
  struct stat file;
  *claimed = false;
  *f = (xt_atomic_file){.fd = -1, .directory = -1, .index = true};
  xt_status status = open_directory(f, strdup(path), error);
  if (status != XT_STATUS_ok) return status;
  const char *digits = digits_of(f->name, index_prefix);
  if (digits) f->fd = open_dead(f->directory, f->name, digits);
  *claimed = f->fd >= 0 && !fstat(f->fd, &file) && S_ISREG(file.st_mode) && file.st_uid == geteuid();
  if (*claimed) memcpy(f->temporary, f->name, strlen(f->name) + 1);
  f->named = *claimed;
  return XT_STATUS_ok;
}

/* ---- Writing ---- */

xt_status xt_atomic_file_write(xt_atomic_file *f, const void *data, size_t size, xt_error *error) {
  const char *from = data;
  while (size) {
    ssize_t written = pwrite(f->fd, from, size < CHUNK ? size : CHUNK, (off_t)f->offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EFAULT)
      return xt_error_set(error, XT_STATUS_file_changed,
                          "the file that a tensor is mapped from was truncated during the save; the target file is "
                          "unchanged");
    if (written < 0 && may_have_room(f)) continue;
    if (written < 0) return failed(error, "written", errno);
    from += written, size -= (size_t)written, f->offset += (uint64_t)written;
  }
  return XT_STATUS_ok;
}

/* ---- Commit and close ---- */

static bool publish(xt_atomic_file *f) {
  if (!f->named) {
    if (!f->replaces && link_as(f, f->name)) return true;
    for (int i = 0; i < TRIES && !f->named; i++) {
      choose_name(f);
      f->named = link_as(f, f->temporary);
      if (!f->named && errno != EEXIST) return false;
    }
  }
  if (!f->named) return false;
  int replaced = xt_replaced_file_hold(f->directory, f->name);
  bool moved = !renameat(f->directory, f->temporary, f->directory, f->name);
  int code = errno;
  xt_replaced_file_release(replaced);
  errno = code;
  f->named = !moved;
  return moved;
}

/* On macOS fsync does not flush the cache of the disk. F_FULLFSYNC does, but not every file system has it. */
static bool sync_to_disk(int fd) {
#ifdef F_FULLFSYNC
  if (fcntl(fd, F_FULLFSYNC) != -1) return true;
#endif
  return !fsync(fd);
}

xt_status xt_atomic_file_sync(xt_atomic_file *f, xt_error *error) {
  bool synced = sync_to_disk(f->fd) && (sync_to_disk(f->directory) || errno == EINVAL);
  return synced ? XT_STATUS_ok : failed(error, "synced to disk", errno);
}

xt_status xt_atomic_file_commit(xt_atomic_file *f, bool sync, xt_error *error) {
  if (sync && !sync_to_disk(f->fd)) return failed(error, "synced to disk", errno);
  while (!publish(f))
    if (!may_have_room(f)) return failed(error, "moved into place", errno);
  if (sync && !sync_to_disk(f->directory) && errno != EINVAL)
    return xt_error_set(error, XT_STATUS_io,
                        "the file was saved completely, but its directory could not be synced to disk: %s",
                        strerror(errno));
  return XT_STATUS_ok;
}

void xt_atomic_file_close(xt_atomic_file *f) {
  if (f->named && !f->index) unlinkat(f->directory, f->temporary, 0);
  if (f->fd >= 0) close(f->fd);
  if (f->directory >= 0) close(f->directory);
  free(f->path);
  *f = (xt_atomic_file){.fd = -1, .directory = -1};
}

void xt_atomic_file_discard(xt_atomic_file *f) {
  f->index = false;
  xt_atomic_file_close(f);
}
