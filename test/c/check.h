/* A minimal runner for C tests.
 *
 *   static void empty(void) { CHECK(…); }
 *   int main(void) { return RUN_TESTS("arena", empty, grows); }
 *
 * The first failed CHECK ends the program with status 1, and so do native memory and mappings that a test leaves
 * behind, and file descriptors that the program did not start with. The last line that a program prints is its summary,
 * "arena: 2 passed, 0 failed". */
#ifndef XT_TEST_CHECK_H
#define XT_TEST_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/memory/memory.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

#define CHECK(condition)                                            \
  do {                                                              \
    if (!(condition)) check_failed(__FILE__, __LINE__, #condition); \
  } while (0)

#define RUN_TESTS(name, ...) \
  run_tests(name, (void (*const[])(void)){__VA_ARGS__}, COUNT_OF(((void (*const[])(void)){__VA_ARGS__})))

static const char *check_program = "test";
static size_t check_passed;

static inline _Noreturn void check_failed(const char *file, int line, const char *condition) {
  fprintf(stderr, "%s:%d: %s\n", file, line, condition);
  printf("%s: %zu passed, 1 failed\n", check_program, check_passed);
  fflush(stdout);
  exit(1);
}

/* Returns the descriptor that the next open would get. */
static inline int next_descriptor(void) {
  int descriptor = dup(STDOUT_FILENO);
  close(descriptor);
  return descriptor;
}

/* Background threads may hold a region a little longer than the test, above all on a busy machine. */
static inline void check_memory(void) {
  enum { STEP_US = 500, MAX_STEPS = 20000 };
  bool freed = false;
  for (int i = 0; i < MAX_STEPS && !freed; i++) {
    if (i) usleep(STEP_US);
    freed = atomic_load(&xt_memory_live.bytes) == 0 && atomic_load(&xt_memory_live.mapped) == 0;
  }
  CHECK(freed);
}

static inline int finish_tests(int first_descriptor) {
  CHECK(next_descriptor() == first_descriptor);
  printf("%s: %zu passed, 0 failed\n", check_program, check_passed);
  return 0;
}

static inline int run_tests(const char *name, void (*const *tests)(void), size_t count) {
  int descriptor = next_descriptor();
  check_program = name;
  for (; check_passed < count; check_passed++) {
    tests[check_passed]();
    check_memory();
  }
  return finish_tests(descriptor);
}

/* Runs one test for each path. EXTORCH_SHOW=1 prints each path first. */
static inline int run_test_for_each(const char *name, void (*test)(const char *path), int count, char **paths) {
  int descriptor = next_descriptor();
  check_program = name;
  for (int i = 0; i < count; i++, check_passed++) {
    if (getenv("EXTORCH_SHOW")) fprintf(stderr, "%s\n", paths[i]);
    test(paths[i]);
    check_memory();
  }
  return finish_tests(descriptor);
}

/* Prints a number for `make fire`, after the summary, if EXTORCH_FIGURES is set. */
static inline void print_figure(const char *name, size_t number) {
  if (getenv("EXTORCH_FIGURES")) printf("figure: %s %zu\n", name, number);
}

/* The contents of a file in memory with room for `extra` more bytes. The caller frees it. */
static inline uint8_t *read_whole_file(const char *path, size_t extra, size_t *size) {
  FILE *file = fopen(path, "rb");
  CHECK(file);
  CHECK(!fseek(file, 0, SEEK_END));
  *size = (size_t)ftell(file);
  rewind(file);
  uint8_t *data = malloc(*size + extra + 1);
  CHECK(data && fread(data, 1, *size, file) == *size);
  fclose(file);
  return data;
}

#endif
