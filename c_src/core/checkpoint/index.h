/* The index: all tensors of an object tree with their names and paths. */
#ifndef XT_CHECKPOINT_INDEX_H
#define XT_CHECKPOINT_INDEX_H

#include "core/base/error.h"
#include "core/memory/table.h"
#include "core/pickle/node.h"

/* The parts of objects and subclasses of tensors; XT_PART_KEY is the key of a dict. */
typedef enum {
  XT_PART_CLASS,
  XT_PART_ARGS,
  XT_PART_STATE,
  XT_PART_LIST,
  XT_PART_DICT,
  XT_PART_TENSOR,
  XT_PART_KEY
} xt_part;

/* One step of a path. The first step has no parent. The paths of tensors have steps for the items of dicts, lists and
 * tuples only. The places of containers have a step for every container: XT_PART_STEP is a step to a part. */
typedef struct xt_path {
  const struct xt_path *parent;
  const xt_node *key; /* of a dict; NULL for other steps */
  int64_t position;   /* in a list, tuple or set */
} xt_path;

#define XT_PART_STEP(part) (-1 - (int64_t)(part)) /* its own inverse */

typedef struct {
  const char *name; /* the path as dotted text */
  size_t name_size;
  const xt_path *path; /* the last step; NULL for the root */
  const xt_tensor_desc *tensor;
} xt_index_entry;

typedef struct {
  xt_index_entry *entries; /* in file order */
  size_t count, capacity;
  xt_table names;        /* name → the last entry with that name */
  uint64_t weight;       /* of the terms of the object and of all entries (weight.h) */
  uint64_t on_heap;      /* bytes of the object's terms on the heap of a process, shared ones counted once */
  uint32_t shared;       /* number of nodes that the tree contains more than once; see xt_node */
  xt_storages *storages; /* of the storages in the tree; NULL if it has none */
  size_t *same;          /* for each entry, 1 + the previous entry with the same name; 0 if there is none */
} xt_index;

typedef struct {
  uint64_t max_nodes; /* a shared node counts each time it is visited */
  uint32_t max_depth;
} xt_index_limits;

/* Allocates memory for `count` entries. The index grows if there are more. Returns false without memory. */
bool xt_index_reserve(xt_index *index, xt_arena *arena, size_t count);

/* Visits a tree, adds all its tensors and numbers its shared nodes. Returns an error if the tree is too deep or too
 * large when every shared node is counted each time. The terms that can be made of the tree and the index are weighed
 * against the allowance of the arena (weight.h).
 *
 * A storage outside a tensor becomes a tensor of all its elements (XT_NODE_BARE), except in a key of a dict.
 *
 * Afterwards the tree has no cycles: a container that would contain itself is replaced by a reference (XT_NODE_REF).
 * So is every further occurrence of a container that such a reference leads out of, except beside the first one: its
 * references would point to the wrong place. */
xt_status xt_index_build(xt_index *index, xt_arena *arena, xt_node *root, const xt_index_limits *limits,
                         xt_error *error);

void xt_index_free(xt_index *index);

/* The children of a node, in the order in which a tree is visited:
 *   list, tuple, set   the items
 *   dict               each key before its value
 *   object             callable, arguments, state, list and dict, as far as present, at the positions 0 to 4
 *   subclass           tensor, class and state
 *   bare storage       tensor */
typedef enum { XT_CHILD_ITEM, XT_CHILD_KEY, XT_CHILD_VALUE, XT_CHILD_PART } xt_child_role;

typedef struct {
  xt_node *node;
  xt_node **slot; /* where the parent has the node */
  xt_child_role role;
  const xt_node *key; /* of a value */
  int64_t position;   /* of an item or part */
} xt_child;

size_t xt_child_count(const xt_node *node);
xt_child xt_child_at(const xt_node *node, size_t i);

#endif
