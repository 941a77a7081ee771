/* The tensors of an object tree, by path: what a checkpoint is asked for. */
#ifndef XT_CHECKPOINT_INDEX_H
#define XT_CHECKPOINT_INDEX_H

#include "core/pickle/rebuild.h"

/* One step of a path; the root's steps have no parent. */
typedef struct xt_path {
  const struct xt_path *parent;
  const xt_node *key; /* NULL: the position below */
  int64_t position;
} xt_path;

typedef struct {
  const char *name; /* dotted */
  size_t name_size;
  const xt_path *path; /* the last step; NULL for the root */
  const xt_tensor_desc *tensor;
} xt_index_entry;

typedef struct {
  xt_index_entry *entries; /* in file order */
  size_t count, room;
  xt_table names; /* name → the last entry with it */
  size_t *same;   /* 1 + the entry before that has the same name, 0 for none */
} xt_index;

typedef struct {
  uint64_t max_nodes; /* of the tree with every shared part counted each time it is seen */
  uint32_t max_depth;
} xt_index_limits;

/* Room for so many tensors in an empty index; it grows if there are more. False when there is no memory. */
bool xt_index_reserve(xt_index *index, xt_arena *arena, size_t count);

/* Adds a tree; walks it: refuses cycles, depth and bombs of shared parts, and lists every tensor. */
xt_status xt_index_build(xt_index *index, xt_arena *arena, xt_node *root, const xt_index_limits *limits,
                         xt_error *error);

void xt_index_free(xt_index *index);

/* The children of a node, in the order of every walk over a tree: items; keys before their values; an object's
 * callable, arguments, state, list and dict (position 0 to 4, those it has); a subclass's tensor, class and state. */
typedef enum { XT_CHILD_ITEM, XT_CHILD_KEY, XT_CHILD_VALUE, XT_CHILD_PART } xt_child_role;

typedef struct {
  xt_node *node;
  xt_child_role role;
  const xt_node *key; /* of a value */
  int64_t position;   /* of an item or part */
} xt_child;

size_t xt_child_count(const xt_node *node);
xt_child xt_child_at(const xt_node *node, size_t i);

#endif
