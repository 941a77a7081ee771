/* Failing allocations: a program that includes this header is linked with -Wl,--wrap for these functions
 * (scripts/c_tests.mk), and the allocation with the number `fail_at` returns NULL. An arena takes many allocations from
 * one chunk; those count only while `fail_arenas` is set. */
#ifndef XT_TEST_FAILING_H
#define XT_TEST_FAILING_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/memory/arena.h"

struct libdeflate_decompressor;

static long fail_at = -1, allocations;
static bool fail_arenas;
static inline bool next_fails(void) {
  return __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED) == fail_at && (errno = ENOMEM);
}
static inline bool next_arena_fails(void) { return fail_arenas && next_fails(); }

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void *__real_xt_pages_map(size_t size);
void *__real_xt_arena_alloc(xt_arena *arena, size_t count, size_t size);
char *__real_xt_arena_text(xt_arena *arena, const char *text, size_t size);
struct libdeflate_decompressor *__real_libdeflate_alloc_decompressor(void);

void *__wrap_malloc(size_t size) { return next_fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return next_fails() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *old, size_t size) { return next_fails() ? NULL : __real_realloc(old, size); }
int __wrap_posix_memalign(void **out, size_t alignment, size_t size) {
  return next_fails() ? ENOMEM : __real_posix_memalign(out, alignment, size);
}
char *__wrap_strdup(const char *text) { return next_fails() ? NULL : __real_strdup(text); }
char *__wrap_strndup(const char *text, size_t size) { return next_fails() ? NULL : __real_strndup(text, size); }
void *__wrap_xt_pages_map(size_t size) { return next_fails() ? NULL : __real_xt_pages_map(size); }
void *__wrap_xt_arena_alloc(xt_arena *arena, size_t count, size_t size) {
  return next_arena_fails() ? NULL : __real_xt_arena_alloc(arena, count, size);
}
char *__wrap_xt_arena_text(xt_arena *arena, const char *text, size_t size) {
  return next_arena_fails() ? NULL : __real_xt_arena_text(arena, text, size);
}
struct libdeflate_decompressor *__wrap_libdeflate_alloc_decompressor(void) {
  return next_fails() ? NULL : __real_libdeflate_alloc_decompressor();
}

#endif
