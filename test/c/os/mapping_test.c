/* Maps files, up to the limit of mappings, with failing calls, and with files that are truncated afterwards. */
#include "core/memory/memory.h"
#include "core/memory/region.h"
#include "core/os/mapping.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "check.h"
#include "failing.h"
#include "faults.h"

enum { PAGES = 8, LIMIT = 1024 };
static char path[4096];
static size_t size;

static void write_file(void) {
  size = PAGES * (size_t)sysconf(_SC_PAGESIZE);
  char *bytes = malloc(size);
  memset(bytes, 'x', size);
  FILE *file = fopen(path, "wb");
  CHECK(file && fwrite(bytes, 1, size, file) == size && !fclose(file));
  free(bytes);
}

static void open_file(xt_file *file) {
  xt_error error;
  write_file();
  CHECK(xt_file_open(file, path, &error) == XT_STATUS_ok);
}

static void reads_a_mapped_file(void) {
  xt_file file;
  xt_region *region;
  xt_error error;
  open_file(&file);
  CHECK(xt_region_map(&file, &region, &error) == XT_STATUS_ok);
  xt_file_close(&file); /* the mapping does not need it */
  CHECK(region->size == size && atomic_load(&xt_memory_live.mapped) == (int64_t)size);
  CHECK(region->data[0] == 'x' && region->data[size - 1] == 'x');
  region->data[0] = 'y'; /* private: the file does not change */
  CHECK(!xt_mapping_poisoned(region->data, size));
  xt_region_drop(region);
  CHECK(atomic_load(&xt_memory_live.mapped) == 0);
}

/* Bytes that are gone read as zeros, and the mapping is marked. */
static void a_truncated_file_poisons_its_mapping(void) {
  xt_file file, other_file;
  xt_region *region, *other;
  xt_error error;
  open_file(&file);
  CHECK(xt_region_map(&file, &region, &error) == XT_STATUS_ok);
  CHECK(xt_file_open(&other_file, "/proc/self/exe", &error) == XT_STATUS_ok);
  CHECK(xt_region_map(&other_file, &other, &error) == XT_STATUS_ok);
  size_t page = size / PAGES;
  CHECK(!truncate(path, (off_t)page));
  CHECK(region->data[0] == 'x' && !xt_mapping_poisoned(region->data, size));
  errno = 77;
  volatile uint8_t byte = region->data[size - 1];
  CHECK(byte == 0 && errno == 77);
  CHECK(region->data[3 * page] == 0 && region->data[0] == 'x');
  CHECK(xt_mapping_poisoned(region->data, size) && xt_mapping_poisoned(region->data + page, 1));
  CHECK(!xt_mapping_poisoned(other->data, other->size) && !xt_mapping_poisoned(&file, sizeof file));
  xt_region_drop(region);
  CHECK(!xt_mapping_poisoned(other->data, other->size));
  xt_region_drop(other);
  xt_file_close(&file);
  xt_file_close(&other_file);
}

/* Also from the middle of a page on, and of a file that was truncated, without a signal. */
static void populates_a_mapping(void) {
  xt_file file;
  xt_region *region;
  xt_error error;
  open_file(&file);
  CHECK(xt_region_map(&file, &region, &error) == XT_STATUS_ok);
  CHECK(xt_mapping_populate(region->data, size) && xt_mapping_populate(region->data + 100, size - 200));
  CHECK(region->data[0] == 'x' && region->data[size - 1] == 'x');
  CHECK(!truncate(path, (off_t)(size / PAGES)));
  bool ignores_advice = !madvise(region->data, size, 9999); /* qemu does, and returns that it succeeded */
  CHECK(ignores_advice || !xt_mapping_populate(region->data, size));
  CHECK(xt_mapping_populate(region->data, 1));
  xt_region_drop(region);
  xt_file_close(&file);
}

static void failing_calls_are_errors(void) {
  xt_file file;
  xt_region *region;
  xt_error error;
  open_file(&file);
  fault_calls = 0, fault_at = 0, fault_errno = ENOMEM;
  CHECK(xt_region_map(&file, &region, &error) == XT_STATUS_io && strstr(error.message, "memory-mapped"));
  fault_at = -1;
  allocations = 0, fail_at = 0;
  CHECK(xt_region_map(&file, &region, &error) == XT_STATUS_no_memory && strstr(error.message, "memory"));
  fail_at = -1;
  CHECK(atomic_load(&xt_memory_live.mapped) == 0);
  CHECK(xt_region_map(&file, &region, &error) == XT_STATUS_ok);
  xt_region_drop(region);
  xt_file_close(&file);
}

static void the_number_of_mappings_is_limited(void) {
  static xt_region *regions[LIMIT];
  xt_region *more = NULL;
  xt_file file;
  xt_error error;
  open_file(&file);
  for (int i = 0; i < LIMIT; i++) CHECK(xt_region_map(&file, &regions[i], &error) == XT_STATUS_ok);
  CHECK(xt_region_map(&file, &more, &error) == XT_STATUS_limit && !more);
  CHECK(strstr(error.message, "the limit is 1024"));
  xt_region_drop(regions[500]);
  CHECK(xt_region_map(&file, &regions[500], &error) == XT_STATUS_ok);
  for (int i = 0; i < LIMIT; i++) xt_region_drop(regions[i]);
  CHECK(atomic_load(&xt_memory_live.mapped) == 0);
  xt_file_close(&file);
}

/* Other accesses to missing pages reach the handler that was installed before. */
static void *foreign_page;
static volatile int foreign_faults;
static bool handler_has_info, use_info;

static void on_foreign(int signal) {
  (void)signal;
  foreign_faults++;
  mmap(foreign_page, 1, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void on_foreign_info(int signal, siginfo_t *info, void *context) {
  (void)context;
  handler_has_info = info->si_addr >= foreign_page;
  on_foreign(signal);
}

static void touch_missing_page(void) {
  write_file();
  int fd = open(path, O_RDONLY);
  foreign_page = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
  CHECK(foreign_page != MAP_FAILED && !truncate(path, 0));
  volatile uint8_t byte = *(uint8_t *)foreign_page;
  CHECK(byte == 0);
  munmap(foreign_page, size);
  close(fd);
}

/* Must run first: the guard is installed by the first mapping, on top of this handler. */
static void installs_on_top_of_another_handler(void) {
  struct sigaction plain = {.sa_handler = on_foreign}, with_info = {.sa_sigaction = on_foreign_info};
  with_info.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, use_info ? &with_info : &plain, NULL);
  reads_a_mapped_file();
  touch_missing_page();
  CHECK(foreign_faults == 1 && handler_has_info == use_info);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  snprintf(path, sizeof path, "%.4000s/mapping_test.bin", argv[1]);
  /* Once more in another process, with a handler of the other kind. */
  pid_t child = fork();
  CHECK(child >= 0);
  if (!child) {
    use_info = true;
    installs_on_top_of_another_handler();
    exit(0);
  }
  int result;
  CHECK(waitpid(child, &result, 0) == child && result == 0);
  int status = RUN_TESTS("mapping", installs_on_top_of_another_handler, reads_a_mapped_file,
                         a_truncated_file_poisons_its_mapping, populates_a_mapping, failing_calls_are_errors,
                         the_number_of_mappings_is_limited);
  unlink(path);
  return status;
}
