/* Sorting by integers and by names, in linear time for the usual names: a save sorts all of its tensors, twice. */
#ifndef XT_BASE_SORT_H
#define XT_BASE_SORT_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint64_t key;
  size_t index;
} xt_sort_item;

typedef struct {
  const char *text;
  size_t size;
} xt_sort_name;

/* Sorts the items by their keys. Items with the same key stay in order. `scratch` has room for as many items. */
void xt_sort_items(xt_sort_item *items, xt_sort_item *scratch, size_t count);

/* Sorts the items by the bytes of the names that their indices refer to. The keys are overwritten. */
void xt_sort_names(const xt_sort_name *names, xt_sort_item *items, xt_sort_item *scratch, size_t count);

#endif
