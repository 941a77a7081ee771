/* What all fuzz targets share: assertions, the memory and time that one call may use, and decisions from the input. */
#ifndef XT_FUZZ_FUZZ_H
#define XT_FUZZ_FUZZ_H

#include <sanitizer/allocator_interface.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REQUIRE(condition)                                            \
  do {                                                                \
    if (!(condition)) require_failed(__FILE__, __LINE__, #condition); \
  } while (0)

static inline _Noreturn void require_failed(const char *file, int line, const char *condition) {
  fprintf(stderr, "%s:%d: %s\n", file, line, condition);
  abort();
}

/* ---- Memory and time ---- */

/* Bytes of malloc (the sanitizer calls the hooks) and of mappings (scripts/fuzz.mk links with --wrap). */
static atomic_llong live_bytes, peak_bytes;

static void count_bytes(long long bytes) {
  long long now = atomic_fetch_add(&live_bytes, bytes) + bytes, peak = atomic_load(&peak_bytes);
  while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now)) continue;
}
static void count_malloc(const volatile void *data, size_t size) { (void)data, count_bytes((long long)size); }
static void count_free(const volatile void *data) {
  if (data) count_bytes(-(long long)__sanitizer_get_allocated_size((const void *)(uintptr_t)data));
}

void *__real_xt_pages_map(size_t size);
void __real_xt_pages_unmap(void *data, size_t size);
void __real_xt_pages_unmap_in_slices(void *data, size_t size);
void *__wrap_xt_pages_map(size_t size) {
  void *data = __real_xt_pages_map(size);
  if (data) count_bytes((long long)size);
  return data;
}
void __wrap_xt_pages_unmap(void *data, size_t size) {
  count_bytes(-(long long)size);
  __real_xt_pages_unmap(data, size);
}
void __wrap_xt_pages_unmap_in_slices(void *data, size_t size) {
  count_bytes(-(long long)size);
  __real_xt_pages_unmap_in_slices(data, size);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  REQUIRE(__sanitizer_install_malloc_and_free_hooks(count_malloc, count_free));
  return 0;
}

typedef struct {
  long long bytes;
  struct timespec time;
} usage;

static usage usage_begin(void) {
  usage u;
  u.bytes = atomic_load(&live_bytes);
  atomic_store(&peak_bytes, u.bytes);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &u.time);
  return u;
}

/* Checks what a call has used: at most 64 MiB, 16 times the size of the file and the bytes of the tensors; at most a
 * second of processor time, and three with the sanitizers. */
static void usage_check(const usage *u, size_t file_size, uint64_t tensor_bytes) {
  long long used = atomic_load(&peak_bytes) - u->bytes;
  long long allowed = (64ll << 20) + 16 * (long long)file_size + (long long)tensor_bytes;
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  double seconds = (double)(now.tv_sec - u->time.tv_sec) + (double)(now.tv_nsec - u->time.tv_nsec) / 1e9;
  if (used > allowed) fprintf(stderr, "used %lld bytes of memory, allowed are %lld\n", used, allowed);
  REQUIRE(used <= allowed);
  if (seconds > 3) fprintf(stderr, "took %.2f seconds\n", seconds);
  REQUIRE(seconds <= 3);
}

/* ---- Decisions from the input ---- */

typedef struct {
  const uint8_t *data;
  size_t size, at;
} choices;

static inline uint8_t choose_byte(choices *c) { return c->at < c->size ? c->data[c->at++] : 0; }
static inline uint64_t choose_number(choices *c, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; i++) value |= (uint64_t)choose_byte(c) << (8 * i);
  return value;
}
static inline size_t choose_below(choices *c, size_t limit) { return limit < 2 ? 0 : choose_number(c, 2) % limit; }
static inline bool choices_left(const choices *c) { return c->at < c->size; }

#endif
