#include "core/base/array.h"

#include "check.h"
#include "core/memory/allowance.h"
#include "failing.h"

typedef struct {
  uint32_t *items;
  size_t count, room;
} list;

static bool push(list *l, uint32_t item) {
  if (!xt_array_reserve(&l->items, &l->room, l->count + 1, sizeof *l->items)) return false;
  l->items[l->count++] = item;
  return true;
}

static void keeps_its_items_while_it_grows(void) {
  list l = {0};
  long before = allocations;
  for (uint32_t i = 0; i < 100000; i++) CHECK(push(&l, i * 7));
  for (uint32_t i = 0; i < 100000; i++) CHECK(l.items[i] == i * 7);
  CHECK(allocations - before < 20); /* the room doubles */
  free(l.items);
}

static void has_the_room_that_was_asked_for(void) {
  list l = {0};
  CHECK(xt_array_reserve(&l.items, &l.room, 5000, sizeof *l.items) && l.room == 5000);
  CHECK(xt_array_reserve(&l.items, &l.room, 5000, sizeof *l.items) && l.room == 5000);
  CHECK(xt_array_reserve(&l.items, &l.room, 5001, sizeof *l.items) && l.room == 10000);
  free(l.items);
}

static void changes_nothing_without_memory(void) {
  list l = {0};
  CHECK(push(&l, 1));
  while (l.count < l.room) CHECK(push(&l, 2));
  uint32_t *items = l.items;
  size_t room = l.room;
  fail_at = allocations;
  CHECK(!push(&l, 3) && l.items == items && l.room == room && l.items[0] == 1);
  fail_at = -1;
  CHECK(!xt_array_reserve(&l.items, &l.room, SIZE_MAX, sizeof *l.items) && l.items == items && l.room == room);
  CHECK(!xt_array_reserve(&l.items, &l.room, SIZE_MAX / sizeof *l.items + 1, sizeof *l.items));
  CHECK(push(&l, 3) && l.items[0] == 1);
  free(l.items);
}

static void is_charged_to_an_allowance(void) {
  xt_allowance allowance = {.limit = 10000};
  list l = {0};
  size_t size = sizeof *l.items;
  CHECK(xt_allowance_reserve(&allowance, &l.items, &l.room, 10, size) && allowance.used == l.room * size);
  CHECK(xt_allowance_reserve(&allowance, &l.items, &l.room, 1000, size) && allowance.used == l.room * size);
  fail_at = allocations;
  CHECK(!xt_allowance_reserve(&allowance, &l.items, &l.room, 1001, size) && allowance.used == l.room * size);
  fail_at = -1;
  CHECK(!allowance.exceeded);
  CHECK(!xt_allowance_reserve(&allowance, &l.items, &l.room, 2501, size) && allowance.used == l.room * size);
  CHECK(allowance.exceeded && l.room == 1000);
  free(l.items);
  xt_allowance_return(&allowance, l.room * size);
  CHECK(allowance.used == 0);
}

int main(void) {
  return RUN_TESTS("array", keeps_its_items_while_it_grows, has_the_room_that_was_asked_for,
                   changes_nothing_without_memory, is_charged_to_an_allowance);
}
