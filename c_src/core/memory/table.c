#include "core/memory/table.h"

#include <stdlib.h>
#include <string.h>

#include "core/os/random.h"
#include "core/os/thread.h"

/* Random per process, so that a file cannot be made to cause collisions. */
static uint64_t secrets[2];

static void choose_secrets(void) { xt_random_fill(secrets, sizeof secrets); }

/* Returns the high half of the 128-bit product xor its low half. */
static uint64_t mix(uint64_t a, uint64_t b) {
  __extension__ unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint32_t hash_of(const void *key, size_t size) {
  static xt_once once = XT_ONCE_INIT;
  const unsigned char *bytes = key;
  xt_once_run(&once, choose_secrets);
  uint64_t hash = secrets[0] ^ size;
  for (; size >= 8; bytes += 8, size -= 8) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    hash = mix(hash ^ word, secrets[1] ^ hash);
  }
  uint64_t word = 0;
  memcpy(&word, bytes, size);
  hash = mix(hash ^ word ^ secrets[0], secrets[1]);
  return (uint32_t)(hash >> 32);
}

/* Returns the slot of the key, or the free slot where it belongs. */
static xt_table_slot *find(const xt_table *table, const void *key, size_t size, uint32_t hash) {
  size_t mask = table->room - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    xt_table_slot *slot = &table->slots[at];
    if (!slot->item) return slot;
    const xt_table_item *item = &table->items[slot->item - 1];
    if (slot->hash == hash && item->size == size && !memcmp(item->key, key, size)) return slot;
  }
}

static xt_table_slot *new_slots(xt_table *table, size_t room) {
  if (table->arena) return xt_arena_alloc(table->arena, room, sizeof(xt_table_slot));
  uint64_t more = (room - table->room) * sizeof(xt_table_slot);
  if (!xt_allowance_take(table->allowance, more)) return NULL;
  xt_table_slot *slots = calloc(room, sizeof *slots);
  if (!slots) xt_allowance_return(table->allowance, more);
  return slots;
}

static bool grow_slots(xt_table *table, size_t room) {
  xt_table_slot *slots = new_slots(table, room);
  if (!slots) return false;
  for (size_t i = 0; i < table->room; i++) {
    if (!table->slots[i].item) continue;
    size_t at = table->slots[i].hash & (room - 1);
    while (slots[at].item) at = (at + 1) & (room - 1);
    slots[at] = table->slots[i];
  }
  if (!table->arena) free(table->slots);
  table->slots = slots;
  table->room = room;
  return true;
}

bool xt_table_reserve(xt_table *table, size_t count) {
  if (count > UINT32_MAX / 4) return false;
  bool reserved =
      table->arena
          ? xt_arena_reserve(table->arena, &table->items, &table->items_room, count, sizeof *table->items)
          : xt_allowance_reserve(table->allowance, &table->items, &table->items_room, count, sizeof *table->items);
  if (!reserved) return false;
  if (2 * count <= table->room) return true;
  size_t room = table->room ? 2 * table->room : 16;
  while (room < 2 * count) room *= 2;
  return grow_slots(table, room);
}

size_t *xt_table_put(xt_table *table, const void *key, size_t size, bool *is_new) {
  if (!xt_table_reserve(table, table->count + 1)) return NULL;
  uint32_t hash = hash_of(key, size);
  xt_table_slot *slot = find(table, key, size, hash);
  *is_new = !slot->item;
  if (*is_new) {
    table->items[table->count++] = (xt_table_item){key, size, 0};
    if (size > table->longest) table->longest = size;
    *slot = (xt_table_slot){hash, (uint32_t)table->count};
  }
  return &table->items[slot->item - 1].value;
}

size_t *xt_table_get(const xt_table *table, const void *key, size_t size) {
  if (!table->count || size > table->longest) return NULL;
  xt_table_slot *slot = find(table, key, size, hash_of(key, size));
  return slot->item ? &table->items[slot->item - 1].value : NULL;
}

void xt_table_free(xt_table *table) {
  if (!table->arena) {
    free(table->items);
    free(table->slots);
    xt_allowance_return(table->allowance,
                        table->room * sizeof *table->slots + table->items_room * sizeof *table->items);
  }
  *table = (xt_table){.allowance = table->allowance, .arena = table->arena};
}
