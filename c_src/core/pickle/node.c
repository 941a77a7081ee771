#include "core/pickle/node.h"

#include <string.h>

/* A list may have millions of numbers, so they get only the memory that they use. */
static size_t size_of(xt_node_kind kind) {
  if (kind == XT_NODE_INT) return offsetof(xt_node, integer) + sizeof(int64_t);
  if (kind == XT_NODE_FLOAT) return offsetof(xt_node, number) + sizeof(double);
  return sizeof(xt_node);
}

xt_node *xt_node_new(xt_arena *arena, xt_node_kind kind) {
  xt_node *node = xt_arena_alloc(arena, 1, size_of(kind));
  if (!node) return NULL;
  node->kind = (uint8_t)kind;
  if (kind == XT_NODE_OBJECT) {
    node->object = xt_arena_alloc(arena, 1, sizeof *node->object);
    if (!node->object) return NULL;
  }
  return node;
}

xt_node *xt_node_new_tensor(xt_arena *arena) {
  xt_node *node = xt_node_new(arena, XT_NODE_TENSOR);
  if (node) node->tensor = xt_arena_alloc(arena, 1, sizeof *node->tensor);
  return node && node->tensor ? node : NULL;
}

xt_node *xt_node_new_text(xt_arena *arena, const char *text, size_t size) {
  xt_node *node = xt_node_new(arena, XT_NODE_TEXT);
  if (node) node->text.data = text, node->text.size = size;
  return node;
}

bool xt_node_append(xt_arena *arena, xt_node *list, xt_node *item) {
  if (!xt_arena_reserve(arena, &list->list.items, &list->list.room, list->list.count + 1, sizeof item)) return false;
  list->list.items[list->list.count++] = item;
  return true;
}

bool xt_node_is_global(const xt_node *node, const char *module, const char *name) {
  return node->kind == XT_NODE_GLOBAL && node->global.module_size == strlen(module) &&
         node->global.name_size == strlen(name) && !memcmp(node->global.module, module, node->global.module_size) &&
         !memcmp(node->global.name, name, node->global.name_size);
}
