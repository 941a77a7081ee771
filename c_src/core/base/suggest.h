/* Edit distance between names, for "did you mean …?" suggestions. */
#ifndef XT_BASE_SUGGEST_H
#define XT_BASE_SUGGEST_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { XT_SUGGEST_MAX = 63 }; /* only this many bytes of a name are compared */

/* Returns the number of edits (insertion, deletion, replacement, swap of neighbors) that turn a into b. */
size_t xt_suggest_distance(const char *a, const char *b);

#ifdef __cplusplus
}
#endif

#endif
