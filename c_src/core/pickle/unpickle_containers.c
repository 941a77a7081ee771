/* Tuples, lists, dicts and sets. */
#include "core/pickle/unpickle_internal.h"

xt_status xt_unpickler_push_items(xt_unpickler *u, xt_node_kind kind, size_t first) {
  size_t count = u->top - first;
  xt_node *node = xt_node_new(u->arena, kind);
  if (!node) return xt_unpickler_no_memory(u);
  node->list.items = xt_arena_alloc(u->arena, count, sizeof *node->list.items);
  if (!node->list.items) return xt_unpickler_no_memory(u);
  if (count) memcpy(node->list.items, u->stack + first, count * sizeof *node->list.items);
  node->list.count = node->list.room = count;
  u->top = first;
  return xt_unpickler_push(u, node);
}

/* Checks that the last count entries of the stack are values. */
static bool has_values(const xt_unpickler *u, size_t count) {
  if (u->top < count) return false;
  for (size_t i = u->top - count; i < u->top; i++)
    if (u->stack[i] == &u->mark) return false;
  return true;
}

xt_status xt_unpickler_push_tuple(xt_unpickler *u, size_t count) {
  if (!has_values(u, count)) return xt_unpickler_corrupt(u, "stack underflow");
  return xt_unpickler_push_items(u, XT_NODE_TUPLE, u->top - count);
}

xt_status xt_unpickler_push_marked(xt_unpickler *u, xt_node_kind kind) {
  size_t first = 0;
  xt_status status = xt_unpickler_find_mark(u, &first);
  if (status != XT_STATUS_ok) return status;
  if (kind == XT_NODE_DICT && (u->top - first) % 2) return xt_unpickler_corrupt(u, "key without a value");
  status = xt_unpickler_push_items(u, kind, first);
  if (status != XT_STATUS_ok) return status;
  u->stack[first - 1] = u->stack[first]; /* the container replaces the mark */
  u->top = first;
  return status;
}

/* ---- Adding items ---- */

/* Returns the list, dict or set that items are added to: the value itself, or the list or dict of an object. */
static xt_node *items_of(xt_unpickler *u, xt_node *value, xt_node_kind kind) {
  if (value->kind == kind) return value;
  if (value->kind != XT_NODE_OBJECT) return NULL;
  xt_node **slot = kind == XT_NODE_DICT ? &value->object->dict : &value->object->list;
  if (!*slot) *slot = xt_node_new(u->arena, kind);
  return *slot;
}

/* Adds the values from `first` to the top. */
static xt_status add_items(xt_unpickler *u, xt_node *value, size_t first, xt_node_kind kind) {
  const char *name = kind == XT_NODE_DICT ? "dict" : kind == XT_NODE_SET ? "set" : "list";
  if (kind == XT_NODE_DICT && (u->top - first) % 2) return xt_unpickler_corrupt(u, "key without a value");
  xt_node *items = items_of(u, value, kind);
  if (!items && value->kind == XT_NODE_OBJECT) return xt_unpickler_no_memory(u);
  if (!items) return xt_unpickler_corrupt(u, "items added to a value that is not a %s", name);
  for (size_t i = first; i < u->top; i++)
    if (!xt_node_append(u->arena, items, u->stack[i])) return xt_unpickler_no_memory(u);
  return XT_STATUS_ok;
}

xt_status xt_unpickler_add(xt_unpickler *u, xt_node_kind kind, size_t count) {
  if (!has_values(u, count + 1)) return xt_unpickler_corrupt(u, "stack underflow");
  xt_status status = add_items(u, u->stack[u->top - count - 1], u->top - count, kind);
  if (status == XT_STATUS_ok) u->top -= count;
  return status;
}

xt_status xt_unpickler_add_marked(xt_unpickler *u, xt_node_kind kind) {
  size_t first = 0;
  xt_status status = xt_unpickler_find_mark(u, &first);
  if (status != XT_STATUS_ok) return status;
  if (first < 2 || u->stack[first - 2] == &u->mark) return xt_unpickler_corrupt(u, "no container below the mark");
  status = add_items(u, u->stack[first - 2], first, kind);
  if (status == XT_STATUS_ok) u->top = first - 1;
  return status;
}
