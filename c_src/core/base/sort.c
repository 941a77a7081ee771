#include "core/base/sort.h"

#include <stdbool.h>
#include <string.h>

enum { BYTE = 8, VALUES = 256, BLOCK = 8, FEW = 32, MAX_LEVEL = 64 };

/* ---- By keys ---- */

static void insert_items(xt_sort_item *items, size_t count) {
  for (size_t i = 1; i < count; i++) {
    xt_sort_item item = items[i];
    size_t at = i;
    for (; at && items[at - 1].key > item.key; at--) items[at] = items[at - 1];
    items[at] = item;
  }
}

/* Distributes the items by one byte of their keys. */
static void distribute(const xt_sort_item *from, xt_sort_item *to, size_t count, int shift) {
  size_t starts[VALUES] = {0}, at = 0;
  for (size_t i = 0; i < count; i++) starts[from[i].key >> shift & (VALUES - 1)]++;
  for (size_t value = 0; value < VALUES; value++) {
    size_t size = starts[value];
    starts[value] = at;
    at += size;
  }
  for (size_t i = 0; i < count; i++) to[starts[from[i].key >> shift & (VALUES - 1)]++] = from[i];
}

void xt_sort_items(xt_sort_item *items, xt_sort_item *scratch, size_t count) {
  uint64_t differing = 0;
  bool in_order = true;
  for (size_t i = 1; i < count; i++) {
    differing |= items[i].key ^ items[0].key;
    in_order &= items[i - 1].key <= items[i].key;
  }
  if (in_order) return;
  if (count <= FEW) {
    insert_items(items, count);
    return;
  }
  xt_sort_item *from = items, *to = scratch;
  for (int shift = 0; shift < BYTE * BLOCK; shift += BYTE) {
    if (!(differing >> shift & (VALUES - 1))) continue;
    distribute(from, to, count, shift);
    xt_sort_item *swap = from;
    from = to;
    to = swap;
  }
  if (from != items) memcpy(items, from, count * sizeof *items);
}

/* ---- By names ---- */

/* Compares two names that are equal up to `from`. */
static int compare(const xt_sort_name *a, const xt_sort_name *b, size_t from) {
  size_t common = a->size < b->size ? a->size : b->size;
  int order = memcmp(a->text + from, b->text + from, common - from);
  return order ? order : a->size < b->size ? -1 : a->size > b->size;
}

/* Merge sort by comparison: for what blocks do not tell apart. */
static void merge_names(const xt_sort_name *names, xt_sort_item *items, xt_sort_item *scratch, size_t count,
                        size_t from) {
  for (size_t width = 1; width < count; width *= 2) {
    for (size_t start = 0; start < count; start += 2 * width) {
      size_t middle = count - start < width ? count : start + width;
      size_t end = count - middle < width ? count : middle + width, a = start, b = middle;
      for (size_t i = start; i < end; i++) {
        bool first = b == end || (a < middle && compare(&names[items[a].index], &names[items[b].index], from) <= 0);
        scratch[i] = items[first ? a++ : b++];
      }
    }
    memcpy(items, scratch, count * sizeof *items);
  }
}

/* Returns how many bytes from `from` on are the same in all names. */
static size_t common_size(const xt_sort_name *names, const xt_sort_item *items, size_t count, size_t from) {
  const xt_sort_name *first = &names[items[0].index];
  size_t common = first->size - from;
  for (size_t i = 1; i < count && common; i++) {
    const xt_sort_name *name = &names[items[i].index];
    if (name->size - from < common) common = name->size - from;
    if (!memcmp(first->text + from, name->text + from, common)) continue;
    for (size_t at = 0; at < common; at++)
      if (first->text[from + at] != name->text[from + at]) common = at;
  }
  return common;
}

/* Returns the next bytes of a name as a number of the same order. Zeros follow the end. */
static uint64_t block_at(const xt_sort_name *name, size_t from) {
  uint64_t key = 0;
  const uint8_t *text = (const uint8_t *)name->text + from;
  size_t size = name->size - from < BLOCK ? name->size - from : BLOCK;
  for (size_t i = 0; i < BLOCK; i++) key = key << BYTE | (i < size ? text[i] : 0);
  return key;
}

/* All names have at least `from` bytes, which are the same. */
static void sort_from(const xt_sort_name *names, xt_sort_item *items, xt_sort_item *scratch, size_t count, size_t from,
                      int level) {
  if (level == MAX_LEVEL) { /* many long names, each the beginning of the next */
    merge_names(names, items, scratch, count, from);
    return;
  }
  from += common_size(names, items, count, from);
  for (size_t i = 0; i < count; i++) items[i].key = block_at(&names[items[i].index], from);
  xt_sort_items(items, scratch, count);
  for (size_t start = 0, end; start < count; start = end) {
    bool longer = true;
    for (end = start; end < count && items[end].key == items[start].key; end++)
      longer &= names[items[end].index].size >= from + BLOCK;
    if (end - start < 2) continue;
    if (longer) sort_from(names, items + start, scratch, end - start, from + BLOCK, level + 1);
    else merge_names(names, items + start, scratch, end - start, from);
  }
}

void xt_sort_names(const xt_sort_name *names, xt_sort_item *items, xt_sort_item *scratch, size_t count) {
  if (count) sort_from(names, items, scratch, count, 0, 0);
}
