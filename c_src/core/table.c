#include "table.h"

#include <stdlib.h>
#include <string.h>

/* FNV-1a over words with a final mix; seeded with an address, so that a file cannot aim for collisions. */
static uint64_t hash_of(const void *key, size_t size) {
  const unsigned char *bytes = key;
  uint64_t hash = 1469598103934665603ull ^ (uint64_t)(uintptr_t)&hash_of;
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t word;
    memcpy(&word, bytes + i, 8);
    hash = (hash ^ word) * 1099511628211ull;
    hash ^= hash >> 29;
  }
  for (; i < size; i++) hash = (hash ^ bytes[i]) * 1099511628211ull;
  hash ^= hash >> 32;
  hash *= 0x9E3779B97F4A7C15ull;
  hash ^= hash >> 29;
  return hash ? hash : 1;
}

static xt_table_slot *find(const xt_table *table, const void *key, size_t size, uint64_t hash) {
  size_t mask = table->room - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    xt_table_slot *slot = &table->slots[at];
    if (!slot->hash) return slot;
    if (slot->hash == hash && slot->size == size && !memcmp(slot->key, key, size)) return slot;
  }
}

bool xt_table_reserve(xt_table *table, size_t count) {
  size_t room = 16;
  while (room < SIZE_MAX / 4 && room / 2 < count) room *= 2;
  if (room <= table->room) return true;
  xt_table grown = {calloc(room, sizeof *grown.slots), room, table->count};
  if (!grown.slots) return false;
  for (size_t i = 0; i < table->room; i++)
    if (table->slots[i].hash) {
      xt_table_slot *old = &table->slots[i];
      *find(&grown, old->key, old->size, old->hash) = *old;
    }
  free(table->slots);
  *table = grown;
  return true;
}

size_t *xt_table_put(xt_table *table, const void *key, size_t size, bool *is_new) {
  if (!xt_table_reserve(table, table->count + 1)) return NULL;
  uint64_t hash = hash_of(key, size);
  xt_table_slot *slot = find(table, key, size, hash);
  *is_new = !slot->hash;
  if (*is_new) {
    *slot = (xt_table_slot){key, size, 0, hash};
    table->count++;
  }
  return &slot->value;
}

size_t *xt_table_get(const xt_table *table, const void *key, size_t size) {
  if (!table->count) return NULL;
  xt_table_slot *slot = find(table, key, size, hash_of(key, size));
  return slot->hash ? &slot->value : NULL;
}

void xt_table_free(xt_table *table) {
  free(table->slots);
  *table = (xt_table){NULL, 0, 0};
}
