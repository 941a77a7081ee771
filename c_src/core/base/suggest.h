/* "Did you mean …?": the distance between a name that was asked for and one that exists. */
#ifndef XT_BASE_SUGGEST_H
#define XT_BASE_SUGGEST_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { XT_SUGGEST_MAX = 63 }; /* longer names are compared by their first so many bytes */

/* Edits (insert, delete, replace, swap of neighbours) between the two. */
size_t xt_suggest_distance(const char *a, const char *b);

#ifdef __cplusplus
}
#endif

#endif
