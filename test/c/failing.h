/* Failing allocations: a program that includes this header is linked with -Wl,--wrap for malloc, calloc and realloc
 * (scripts/c_tests.mk), and the allocation with the number `fail_at` returns NULL. */
#ifndef XT_TEST_FAILING_H
#define XT_TEST_FAILING_H

#include <stdbool.h>
#include <stddef.h>

static long fail_at = -1, allocations;
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
static bool next_fails(void) { return allocations++ == fail_at; }
void *__wrap_malloc(size_t size) { return next_fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return next_fails() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *old, size_t size) { return next_fails() ? NULL : __real_realloc(old, size); }

#endif
