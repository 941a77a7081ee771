/* Replaces and creates files while each system call and each allocation fails once. Either the new file is there, or
 * the old one, or none; never a part of a file, and never a temporary file. */
#include "core/os/atomic_file.h"

#include <dirent.h>
#include <string.h>

#include "check.h"
#include "core/os/replaced_file.h"
#include "failing.h"
#include "faults.h"

static char directory[4096], path[4200];
static const char old_text[] = "the old file", new_text[] = "the new file, which is longer";

static void write_text(const char *name, const char *text) {
  FILE *file = fopen(name, "wb");
  CHECK(file && fwrite(text, 1, strlen(text), file) == strlen(text) && !fclose(file));
}

static void read_text(const char *name, char *out, size_t room) {
  FILE *file = fopen(name, "rb");
  out[0] = 0;
  if (!file) return;
  out[fread(out, 1, room - 1, file)] = 0;
  fclose(file);
}

static int temporary_files(bool delete) {
  DIR *dir = opendir(directory);
  int count = 0;
  CHECK(dir);
  for (struct dirent *entry; (entry = readdir(dir));) {
    if (strncmp(entry->d_name, ".extorch", 8)) continue;
    count++;
    if (delete) unlinkat(dirfd(dir), entry->d_name, 0);
  }
  closedir(dir);
  return count;
}

static xt_status save(const char *to, bool sync, xt_error *error) {
  xt_atomic_file file;
  memset(error, 0, sizeof *error);
  xt_status status = xt_atomic_file_open(&file, to, error);
  for (size_t i = 0; i < strlen(new_text) && status == XT_STATUS_ok; i += 10)
    status = xt_atomic_file_write(&file, new_text + i, strlen(new_text + i) < 10 ? strlen(new_text + i) : 10, error);
  if (status == XT_STATUS_ok) status = xt_atomic_file_commit(&file, sync, error);
  xt_atomic_file_close(&file);
  xt_atomic_file_close(&file); /* may be called more than once */
  return status;
}

/* After a save that may have failed. A failed sync of the directory is the only error after which the new file is
 * there. */
static void check_result(xt_status status, bool replaces, const xt_error *error) {
  char text[100];
  read_text(path, text, sizeof text);
  if (status == XT_STATUS_ok || strstr(error->message, "saved completely")) CHECK(!strcmp(text, new_text));
  else CHECK(!strcmp(text, replaces ? old_text : ""));
  if (status != XT_STATUS_ok) CHECK(error->message[0]);
}

static void prepare(bool replaces) {
  unlink(path);
  if (replaces) write_text(path, old_text);
}

static void every_failing_call(int code, bool replaces) {
  xt_error error;
  int refused = 0;
  for (fault_at = 0, fault_errno = code;; fault_at++) {
    long at = fault_at;
    fault_at = -1;
    prepare(replaces);
    fault_at = at, fault_calls = 0;
    xt_status status = save(path, true, &error);
    long calls = fault_calls;
    fault_at = -1;
    check_result(status, replaces, &error);
    refused += status != XT_STATUS_ok;
    /* Nothing can be removed if removing fails, but no other call may leave a file. */
    CHECK(temporary_files(true) == 0);
    fault_at = at;
    if (calls > at) continue;
    CHECK(status == XT_STATUS_ok);
    break;
  }
  fault_at = -1;
  CHECK(refused >= 5);
}

static void failing_calls_leave_the_old_file(void) { every_failing_call(EIO, true); }
static void failing_calls_leave_no_file(void) { every_failing_call(EIO, false); }
static void a_full_disk(void) { every_failing_call(ENOSPC, true); }

/* Without O_TMPFILE the file has a temporary name from the beginning. */
static void file_systems_without_unnamed_files(void) {
  every_failing_call(EOPNOTSUPP, true); /* one of the calls is O_TMPFILE */
  no_unnamed_files = true;
  every_failing_call(EIO, true);
  every_failing_call(EEXIST, false);
  no_unnamed_files = false;
}

static void failing_allocations_leave_the_old_file(void) {
  xt_error error;
  for (long at = 0;; at++) {
    prepare(true);
    allocations = 0, fail_at = at;
    xt_status status = save(path, false, &error);
    fail_at = -1;
    check_result(status, true, &error);
    CHECK(temporary_files(true) == 0);
    if (allocations <= at) {
      CHECK(status == XT_STATUS_ok);
      break;
    }
  }
}

static void short_and_interrupted_writes(void) {
  xt_error error;
  prepare(true);
  short_io = 3, interrupts = 20;
  xt_status status = save(path, true, &error);
  short_io = 0;
  check_result(status, true, &error);
  CHECK(status == XT_STATUS_ok && interrupts == 0);
}

enum { LARGE = 16 << 20 };

/* Waits until replaced files are closed. */
static void settle(void) { xt_replaced_file_wait(&(unsigned){0}); }

static void large_files_are_replaced(void) {
  xt_error error;
  int descriptor = next_descriptor();
  prepare(true);
  CHECK(!truncate(path, LARGE));
  xt_status status = save(path, true, &error);
  check_result(status, true, &error);
  CHECK(status == XT_STATUS_ok);
  settle();
  CHECK(next_descriptor() == descriptor);
  CHECK(!truncate(path, LARGE));
  fault_call = NULL, fault_errno = EIO; /* if the new file cannot be moved into place, the old one stays */
  for (fault_at = 0; !fault_call || strcmp(fault_call, "renameat"); fault_at++) {
    fault_calls = 0;
    status = save(path, true, &error);
    CHECK(fault_calls > fault_at);
  }
  fault_at = -1;
  CHECK(status == XT_STATUS_io && strstr(error.message, "moved into place"));
  settle();
  CHECK(next_descriptor() == descriptor);
}

/* Calls that fail because the disk is full succeed after a file that was replaced before is closed, whenever that is.
 */
static void a_disk_that_gets_room(void) {
  xt_error error;
  xt_atomic_file file;
  for (int commit = 0; commit < 2; commit++)
    for (int wait = 0; wait < 2; wait++) {
      prepare(true);
      CHECK(!truncate(path, LARGE) && xt_atomic_file_open(&file, path, &error) == XT_STATUS_ok);
      if (commit) CHECK(xt_atomic_file_write(&file, new_text, sizeof new_text, &error) == XT_STATUS_ok);
      xt_replaced_file_release(xt_replaced_file_hold(file.directory, file.name));
      if (wait) settle();
      fault_at = 0, fault_calls = 0, fault_errno = wait ? EDQUOT : ENOSPC;
      if (commit) CHECK(xt_atomic_file_commit(&file, false, &error) == XT_STATUS_ok);
      else CHECK(xt_atomic_file_write(&file, new_text, sizeof new_text, &error) == XT_STATUS_ok);
      fault_at = -1;
      CHECK(fault_calls > 1);
      xt_atomic_file_close(&file);
      settle();
    }
}

/* Opens a file for a save with one failing call, while a large file is closed if there is one. */
static xt_status open_with_fault(long at, int replaced) {
  xt_error error;
  xt_atomic_file file;
  fault_at = at, fault_calls = 0, fault_errno = ENOSPC, fault_call = NULL;
  xt_replaced_file_release(replaced);
  xt_status status = xt_atomic_file_open(&file, path, &error);
  fault_at = -1;
  xt_atomic_file_close(&file);
  settle();
  return status;
}

/* The same while the new file is created. The old one may be closed before that. */
static void a_directory_that_gets_room(void) {
  int fd = open(directory, O_RDONLY | O_DIRECTORY);
  long at = 0;
  prepare(true);
  while (open_with_fault(at, -1) == XT_STATUS_ok || strcmp(fault_call, "openat")) CHECK(at++ < 100);
  CHECK(!truncate(path, LARGE));
  xt_status status = XT_STATUS_io;
  for (int tries = 0; tries < 1000 && status != XT_STATUS_ok; tries++)
    status = open_with_fault(at, xt_replaced_file_hold(fd, strrchr(path, '/') + 1));
  CHECK(status == XT_STATUS_ok);
  close(fd);
}

/* A write from memory whose file was truncated fails with EFAULT. */
static void data_that_cannot_be_read(void) {
  xt_error error;
  xt_atomic_file file;
  prepare(true);
  CHECK(xt_atomic_file_open(&file, path, &error) == XT_STATUS_ok);
  fault_calls = 0, fault_at = 0, fault_errno = EFAULT;
  CHECK(xt_atomic_file_write(&file, "x", 1, &error) == XT_STATUS_file_changed);
  fault_at = -1, fault_errno = EIO;
  xt_atomic_file_close(&file);
  check_result(XT_STATUS_file_changed, true, &error);
}

static xt_status refusal(const char *target, const char *message) {
  xt_error error;
  xt_status status = save(target, true, &error);
  CHECK(status != XT_STATUS_ok && strstr(error.message, message));
  return status;
}

static void refuses_bad_targets(void) {
  char name[5000];
  CHECK(refusal("/nonexistent/directory/file", "no such directory") == XT_STATUS_not_found);
  CHECK(refusal(directory, "directory") == XT_STATUS_io);
  snprintf(name, sizeof name, "%s/", directory);
  CHECK(refusal(name, "directory") == XT_STATUS_io);
  CHECK(refusal("/dev/null", "regular file") == XT_STATUS_io);
  CHECK(refusal("/proc/self/extorch", "") != XT_STATUS_ok);
}

static void follows_links(void) {
  char link[5000], text[100];
  xt_error error;
  snprintf(link, sizeof link, "%s/atomic_file_test.link", directory);
  unlink(link);
  prepare(false);
  CHECK(!symlink("atomic_file_test.bin", link)); /* relative, to a file that does not exist yet */
  CHECK(save(link, true, &error) == XT_STATUS_ok);
  read_text(path, text, sizeof text);
  CHECK(!strcmp(text, new_text));
  unlink(link);
  CHECK(!symlink("atomic_file_test.link", link)); /* to itself */
  CHECK(save(link, true, &error) != XT_STATUS_ok);
  unlink(link);
}

/* A name of another process that died is removed; one that is still locked is kept, and so are other files. */
static void removes_stale_files(void) {
  char stale[5000], used[5000], other[5000];
  xt_error error;
  snprintf(stale, sizeof stale, "%s/.extorch-save-0123456789abcdef01234567", directory);
  snprintf(used, sizeof used, "%s/.extorch-save-fedcba987654321001234567", directory);
  snprintf(other, sizeof other, "%s/.extorch-save-mine", directory);
  write_text(stale, "x");
  write_text(used, "x");
  write_text(other, "x");
  int fd = open(used, O_RDONLY);
  CHECK(fd >= 0 && !flock(fd, LOCK_EX));
  prepare(false);
  CHECK(save(path, true, &error) == XT_STATUS_ok);
  CHECK(access(stale, F_OK) && !access(used, F_OK) && !access(other, F_OK));
  close(fd);
  CHECK(temporary_files(true) == 2);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  snprintf(directory, sizeof directory, "%.4000s/atomic_file_test", argv[1]);
  mkdir(directory, 0700);
  snprintf(path, sizeof path, "%s/atomic_file_test.bin", directory);
  int status = RUN_TESTS("atomic_file", failing_calls_leave_the_old_file, failing_calls_leave_no_file, a_full_disk,
                         file_systems_without_unnamed_files, failing_allocations_leave_the_old_file,
                         short_and_interrupted_writes, large_files_are_replaced, a_disk_that_gets_room,
                         a_directory_that_gets_room, data_that_cannot_be_read, refuses_bad_targets, follows_links,
                         removes_stale_files);
  unlink(path);
  rmdir(directory);
  return status;
}
