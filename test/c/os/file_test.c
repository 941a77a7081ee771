/* Reads files, with failing, interrupted and short system calls. */
#include "core/os/file.h"

#include <string.h>

#include "check.h"
#include "faults.h"

static char path[4096], directory[4096];
enum { SIZE = 10000 };
static uint8_t content[SIZE];

static void write_file(size_t size) {
  FILE *file = fopen(path, "wb");
  CHECK(file && fwrite(content, 1, size, file) == size && !fclose(file));
}

static xt_status open_path(const char *name, xt_error *error) {
  xt_file file;
  memset(error, 0, sizeof *error);
  xt_status status = xt_file_open(&file, name, error);
  xt_file_close(&file);
  xt_file_close(&file); /* may be called twice */
  return status;
}

static void refuses_what_is_not_a_regular_file(void) {
  char fifo[5000];
  xt_error error;
  CHECK(open_path("/nonexistent/file", &error) == XT_STATUS_not_found && strstr(error.message, "no such file"));
  CHECK(open_path(directory, &error) == XT_STATUS_io && strstr(error.message, "directory"));
  CHECK(open_path("/dev/null", &error) == XT_STATUS_io && strstr(error.message, "regular file"));
  snprintf(fifo, sizeof fifo, "%s/file_test.fifo", directory);
  unlink(fifo);
  CHECK(!mkfifo(fifo, 0600));
  CHECK(open_path(fifo, &error) == XT_STATUS_io && strstr(error.message, "regular file"));
  unlink(fifo);
  fault_calls = 0, fault_at = 0, fault_errno = EACCES;
  CHECK(open_path(path, &error) == XT_STATUS_io && strstr(error.message, "permission denied"));
  fault_at = -1, fault_errno = EIO;
}

static xt_status read_all(xt_error *error) {
  static uint8_t bytes[SIZE];
  xt_file file;
  memset(bytes, 0, sizeof bytes);
  memset(error, 0, sizeof *error);
  xt_status status = xt_file_open(&file, path, error);
  if (status == XT_STATUS_ok) status = xt_file_read(&file, 0, bytes, SIZE, error);
  if (status == XT_STATUS_ok) status = xt_file_check(&file, error);
  if (status == XT_STATUS_ok) CHECK(file.size == SIZE && !memcmp(bytes, content, SIZE));
  xt_file_close(&file);
  return status;
}

static void every_failing_call_is_an_error(void) {
  xt_error error;
  write_file(SIZE);
  for (short_io = 0; short_io <= 4096; short_io += 4096)
    for (fault_at = 0;; fault_at++) {
      fault_calls = 0;
      xt_status status = read_all(&error);
      if (fault_calls <= fault_at) {
        CHECK(status == XT_STATUS_ok);
        break;
      }
      CHECK(status == XT_STATUS_io && strstr(error.message, strerror(EIO)));
    }
  fault_at = -1, short_io = 0;
}

static void continues_short_and_interrupted_reads(void) {
  xt_error error;
  write_file(SIZE);
  short_io = 7;
  interrupts = 100;
  CHECK(read_all(&error) == XT_STATUS_ok && interrupts == 0);
  short_io = 0;
}

static void notices_a_file_that_changes(void) {
  xt_error error;
  xt_file file;
  uint8_t bytes[SIZE];
  write_file(SIZE);
  CHECK(xt_file_open(&file, path, &error) == XT_STATUS_ok);
  CHECK(xt_file_read(&file, SIZE - 1, bytes, 2, &error) == XT_STATUS_truncated && error.offset == SIZE);
  CHECK(!truncate(path, SIZE / 2));
  CHECK(xt_file_check(&file, &error) == XT_STATUS_file_changed && strstr(error.message, "10000 bytes then, 5000 now"));
  CHECK(xt_file_read(&file, 0, bytes, SIZE, &error) == XT_STATUS_file_changed);
  CHECK(!truncate(path, 2 * SIZE));
  CHECK(xt_file_check(&file, &error) == XT_STATUS_file_changed);
  xt_file_close(&file);
}

/* A file that was opened again is the same one, also if its name is another's by now. */
static void opens_a_file_again(void) {
  xt_file file, again;
  xt_error error;
  uint8_t bytes[SIZE] = {0};
  write_file(SIZE);
  CHECK(xt_file_open(&file, path, &error) == XT_STATUS_ok);
  unlink(path);
  if (xt_file_reopen(&file, &again)) {
    CHECK(again.fd != file.fd && xt_file_read(&again, 0, bytes, SIZE, &error) == XT_STATUS_ok);
    CHECK(!memcmp(bytes, content, SIZE) && xt_file_check(&again, &error) == XT_STATUS_ok);
    xt_file_close(&again);
  }
  xt_file_close(&file);
  CHECK(!xt_file_reopen(&file, &again) && again.fd == -1);
  write_file(SIZE);
}

/* Every range: at the ends of blocks, inside one, over several, up to the end of the file and past it. */
static void reads_past_the_cache(void) {
  static _Alignas(XT_FILE_BLOCK) uint8_t memory[SIZE + 2 * XT_FILE_BLOCK];
  static const uint64_t places[] = {0, 1, 4095, 4096, 4097, 8191, 8192, 9000, SIZE - 1, SIZE};
  enum { PLACES = sizeof places / sizeof *places };
  xt_file file, uncached;
  xt_error error;
  write_file(SIZE);
  CHECK(xt_file_open(&file, path, &error) == XT_STATUS_ok);
  bool can = xt_file_reopen_uncached(&file, &uncached) && xt_file_read_uncached(&uncached, 0, memory, 1);
  for (int i = 0; can && i < PLACES; i++)
    for (int j = i; j < PLACES; j++) {
      uint64_t offset = places[i], size = places[j] - offset;
      uint8_t *to = memory + offset % XT_FILE_BLOCK;
      for (int n = 0; n < 3; n += 2) {
        interrupts = n;
        memset(memory, 0xee, sizeof memory);
        CHECK(xt_file_read_uncached(&uncached, offset, to, size));
        CHECK(!memcmp(to, content + offset, size) && to[size] == 0xee);
        CHECK(offset % XT_FILE_BLOCK == 0 || to[-1] == 0xee);
      }
      CHECK(!xt_file_read_uncached(&uncached, offset, to, SIZE + 1 - offset));
      interrupts = 0, fault_calls = 0, fault_at = 0;
      CHECK(!size || !xt_file_read_uncached(&uncached, offset, to, size));
      fault_at = -1;
    }
  if (can) {
    short_io = XT_FILE_BLOCK;
    CHECK(xt_file_read_uncached(&uncached, 1, memory + 1, SIZE - 1) && !memcmp(memory + 1, content + 1, SIZE - 1));
    short_io = 0;
    CHECK(!xt_file_read_uncached(&uncached, 0, memory + 1, XT_FILE_BLOCK)); /* not congruent */
    CHECK(xt_file_read_uncached(&uncached, 0, memory + 1, 100) && !memcmp(memory + 1, content, 100));
    /* what was not written to the disk yet */
    write_file(SIZE / 2);
    CHECK(!xt_file_read_uncached(&uncached, 0, memory, SIZE));
    CHECK(xt_file_read_uncached(&uncached, 0, memory, SIZE / 2) && !memcmp(memory, content, SIZE / 2));
  }
  xt_file_close(&uncached);
  xt_file_close(&file);
  CHECK(!xt_file_reopen_uncached(&file, &uncached) && uncached.fd == -1);
  write_file(SIZE);
}

static void reads_all_or_nothing_of_the_cache(void) {
  xt_error error;
  xt_file file;
  uint8_t bytes[SIZE] = {0};
  write_file(SIZE);
  CHECK(xt_file_open(&file, path, &error) == XT_STATUS_ok);
  if (xt_file_read_cached(&file, 10, bytes, SIZE - 10)) CHECK(!memcmp(bytes, content + 10, SIZE - 10));
  CHECK(!xt_file_read_cached(&file, 10, bytes, SIZE));
  CHECK(!xt_file_read_cached(&file, SIZE, bytes, 1));
  xt_file_close(&file);
  CHECK(!xt_file_read_cached(&file, 0, bytes, 1));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  snprintf(directory, sizeof directory, "%s", argv[1]);
  snprintf(path, sizeof path, "%.4000s/file_test.bin", directory);
  for (int i = 0; i < SIZE; i++) content[i] = (uint8_t)(i * 7 + i / 256);
  write_file(SIZE);
  int status = RUN_TESTS("file", refuses_what_is_not_a_regular_file, opens_a_file_again, every_failing_call_is_an_error,
                         continues_short_and_interrupted_reads, notices_a_file_that_changes,
                         reads_all_or_nothing_of_the_cache, reads_past_the_cache);
  unlink(path);
  return status;
}
