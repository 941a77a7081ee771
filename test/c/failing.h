/* Allocations that fail: a test that includes this is linked with -Wl,--wrap for each (check.sh), and can make the Nth
 * of them give nothing. */
#ifndef XT_TEST_FAILING_H
#define XT_TEST_FAILING_H

#include <stdbool.h>
#include <stddef.h>

static long fail_at = -1, allocations;
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
static bool fails(void) { return allocations++ == fail_at; }
void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return fails() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *old, size_t size) { return fails() ? NULL : __real_realloc(old, size); }

#endif
