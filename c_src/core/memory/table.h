/* A hash table from byte strings to numbers. The keys are not copied. Items are stored in a dense array in insertion
 * order; the slots that a lookup probes are small, so that even large tables stay in the CPU caches. A zeroed table is
 * empty and ready for use. */
#ifndef XT_MEMORY_TABLE_H
#define XT_MEMORY_TABLE_H

#include <stddef.h>

#include "core/memory/arena.h"

typedef struct {
  const void *key;
  size_t size;
  size_t value;
} xt_table_item;

typedef struct {
  uint32_t hash;
  uint32_t item; /* 1 + index of the item; 0 if the slot is free */
} xt_table_slot;

typedef struct {
  xt_table_item *items;
  xt_table_slot *slots;
  size_t count, items_room; /* of items */
  size_t room;              /* of slots, a power of two */
  size_t longest;           /* bytes of the longest key */
  xt_allowance *allowance;  /* the memory is taken from it; NULL for none */
  xt_arena *arena;          /* the memory is in this arena, for a table that lives as long; NULL otherwise */
} xt_table;

/* Makes space for count keys. Returns false if there is not enough memory or allowance. */
bool xt_table_reserve(xt_table *table, size_t count);

/* Adds the key with the value 0 if it is not in the table yet, and sets *is_new to whether it did. Returns the address
 * of the key's value, which is valid until the next put, or NULL if there is not enough memory. */
size_t *xt_table_put(xt_table *table, const void *key, size_t size, bool *is_new);

/* Returns the address of the key's value, or NULL if the key is not in the table. Keys that are longer than all in the
 * table take no time. */
size_t *xt_table_get(const xt_table *table, const void *key, size_t size);

void xt_table_free(xt_table *table);

#endif
