/* The small wrappers of the operating system. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "core/memory/reaper.h"
#include "core/os/background.h"
#include "core/os/cpu.h"
#include "core/os/libraries.h"
#include "core/os/random.h"
#include "core/os/thread.h"
#include "core/os/yield.h"
#include "faults.h"

static void there_is_a_cpu(void) { CHECK(xt_cpu_count() >= 1); }

static bool all_zero(const uint8_t *bytes, size_t size) {
  for (size_t i = 0; i < size; i++)
    if (bytes[i]) return false;
  return true;
}

/* Also without the system's generator, and for a size that is not a multiple of a word. */
static void random_bytes_differ(void) {
  for (fault_errno = ENOSYS, fault_at = -1; fault_at <= 0; fault_at++) {
    uint8_t a[27] = {0}, b[27] = {0};
    fault_calls = 0;
    xt_random_fill(a, 25);
    fault_calls = 0;
    xt_random_fill(b, 25);
    CHECK(memcmp(a, b, 25) && !all_zero(a, 25) && !all_zero(a + 16, 9) && all_zero(a + 25, 2));
  }
  fault_at = -1;
}

static void *ignore(void *argument) { return argument; }

static void not_called(void *subject, size_t from, size_t to, const atomic_bool *cancelled) {
  (void)subject, (void)from, (void)to, (void)cancelled;
  CHECK(false);
}

static void not_dropped(void *subject) { CHECK(!subject); }

/* Without its thread the reaper cannot be used, and background jobs are refused: their callers do the work. */
static void threads_that_cannot_start_are_reported(void) {
  static int subject;
  fault_calls = 0, fault_at = 0;
  CHECK(!xt_thread_start(ignore, NULL));
  fault_calls = 0;
  CHECK(!xt_reaper_start() && !xt_reaper_start());
  CHECK(xt_reaper_halt(1000));
  fault_calls = 0;
  for (int i = 0; i < 100; i++)
    CHECK(!xt_background_submit((xt_background_job){not_called, not_dropped, &subject, 0, 1}));
  fault_at = -1;
}

static void count_library(void *context, const char *library) {
  (void)library;
  ++*(int *)context;
}

static void libraries(void) {
  const char *reason = NULL;
  int count = 0;
  CHECK(!xt_libraries_open("/nonexistent/library.so", &reason) && reason && *reason);
#ifndef STATIC_TESTS /* a static program cannot open libraries */
  CHECK(strstr(reason, "nonexistent"));
  void *self = xt_libraries_open(NULL, &reason);
  CHECK(self && xt_libraries_symbol(self, "malloc") && !xt_libraries_symbol(self, "no_such_symbol"));
#endif
  xt_libraries_each(count_library, &count);
  CHECK(count > 0);
  xt_libraries_pin(&count);
}

/* Writes a file of two bytes more than is compared. */
static void write_library(const char *path, char first, char last) {
  FILE *file = fopen(path, "wb");
  CHECK(file && fputc(first, file) == first);
  for (int i = 0; i < 1 << 20; i++) fputc(i, file);
  CHECK(fputc(last, file) == last && !fclose(file));
}

static void libraries_are_shared_with_copies(void) {
  char dir[] = "/tmp/extorch_test_XXXXXX", paths[4][64];
  const char *const names[] = {"a.so", "copy.so", "other.so", "longer.so"};
  CHECK(mkdtemp(dir));
  for (int i = 0; i < 4; i++) snprintf(paths[i], sizeof paths[i], "%s/%s", dir, names[i]);
  write_library(paths[0], 1, 2), write_library(paths[1], 1, 2), write_library(paths[2], 3, 2);
  CHECK(xt_libraries_shares(paths[0], paths[0]) && xt_libraries_shares(paths[0], paths[1]));
  CHECK(!xt_libraries_shares(paths[0], paths[2]));
  FILE *longer = fopen(paths[1], "ab");
  CHECK(longer && fputc(1, longer) == 1 && !fclose(longer));
  CHECK(!xt_libraries_shares(paths[0], paths[1]));
  CHECK(!xt_libraries_shares(paths[0], paths[3]) && !xt_libraries_shares(paths[0], dir));
  CHECK(xt_libraries_shares("/nonexistent/a.so", paths[0]) && !xt_libraries_shares("/nonexistent/a.so", paths[1]));
  for (int i = 0; i < 3; i++) CHECK(!remove(paths[i]));
  CHECK(!remove(dir));
}

/* Whoever else runs, a job goes on in steps that are neither tiny nor longer than a timer should wait. */
static void long_jobs_yield(void) {
  for (int i = 0; i < 100; i++) {
    size_t step = xt_yield(UINT64_MAX);
    CHECK(step >= 64 << 10 && step <= 512 << 10);
    CHECK(xt_yield(9) == 9 && xt_yield(0) == 0 && xt_yield(5000) == 5000);
  }
}

int main(void) {
  return RUN_TESTS("system", there_is_a_cpu, random_bytes_differ, threads_that_cannot_start_are_reported,
                   long_jobs_yield, libraries, libraries_are_shared_with_copies);
}
