/* A hash table from byte strings (not copied) to numbers. Keys lie in a dense array in the order they came; the slots
 * that are jumped through are small, so that even large tables stay in the processor's caches. */
#ifndef XT_BASE_TABLE_H
#define XT_BASE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  const void *key;
  size_t size;
  size_t value;
} xt_table_item;

typedef struct {
  uint32_t hash;
  uint32_t item; /* 1 + its index, 0: free */
} xt_table_slot;

typedef struct {
  xt_table_item *items;
  xt_table_slot *slots;
  size_t count, items_room, room; /* a zeroed table is empty and usable */
} xt_table;

/* Room for so many keys without growing; false when there is no memory. */
bool xt_table_reserve(xt_table *table, size_t count);

/* The place of the key's value, good until the next put; *is_new tells whether the key was put there now. NULL when
 * there is no memory. */
size_t *xt_table_put(xt_table *table, const void *key, size_t size, bool *is_new);

/* The place of the key's value, or NULL. */
size_t *xt_table_get(const xt_table *table, const void *key, size_t size);

void xt_table_free(xt_table *table);

#endif
