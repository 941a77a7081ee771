#include "core/os/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/vfs.h>
#elif defined __APPLE__
#include <sys/mount.h>
#include <sys/param.h>
#endif

static xt_status failed(xt_error *error, const char *what, int code) {
  const char *reason = code == ENOENT ? "no such directory" : code == EACCES ? "permission denied" : strerror(code);
  return xt_error_set(error, code == ENOENT ? XT_STATUS_not_found : XT_STATUS_io, "the directory could not be %s: %s",
                      what, reason);
}

xt_status xt_directory_lock(const char *path, int *fd, xt_error *error) {
  *fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (*fd < 0) return failed(error, "opened", errno);
  if (flock(*fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
    close(*fd);
    *fd = -1;
  }
  return XT_STATUS_ok;
}

void xt_directory_unlock(int fd) { close(fd); }

xt_status xt_directory_list(const char *path, bool (*visit)(void *context, const char *name), void *context,
                            xt_error *error) {
  DIR *dir = opendir(path);
  if (!dir) return failed(error, "opened", errno);
  struct dirent *entry;
  do {
    errno = 0;
    entry = readdir(dir);
  } while (entry && visit(context, entry->d_name));
  int code = entry ? 0 : errno;
  closedir(dir);
  return code ? failed(error, "read", code) : XT_STATUS_ok;
}

/* ---- Other hosts ---- */

bool xt_directory_shared(int fd) {
#ifdef __linux__
  struct statfs fs;
  if (fstatfs(fd, &fs)) return false;
  switch ((uint32_t)fs.f_type) {
  case 0x00006969: /* NFS */
  case 0x0000517b: /* SMB */
  case 0xff534d42: /* CIFS */
  case 0xfe534d42: /* SMB 2 */
  case 0x00c36400: /* Ceph */
  case 0x01021997: /* 9P */
  case 0x0bd00bd0: /* Lustre */
  case 0x47504653: /* GPFS */
  case 0x5346414f: /* AFS */
  case 0x65735546: /* FUSE */ return true;
  default: return false;
  }
#elif defined __APPLE__
  struct statfs fs;
  return !fstatfs(fd, &fs) && !(fs.f_flags & MNT_LOCAL);
#else
  return (void)fd, false;
#endif
}

/* Linux has an identifier of the boot, which containers share with their host, unlike its name. */
uint32_t xt_directory_host(void) {
  char text[256] = "";
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t size = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (size <= 0) gethostname(text, sizeof text - 1);
  uint32_t hash = 2166136261u; /* FNV-1a */
  for (const char *at = text; *at; at++) hash = (hash ^ (uint8_t)*at) * 16777619u;
  return hash;
}
