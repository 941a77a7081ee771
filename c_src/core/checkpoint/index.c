#include "core/checkpoint/index.h"
#include "core/checkpoint/weight.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Children ---- */

static xt_node *object_part(const xt_node *node, size_t i) {
  xt_node *parts[] = {node->object->callable, node->object->args, node->object->state, node->object->list,
                      node->object->dict};
  return i < 5 ? parts[i] : NULL;
}

size_t xt_child_count(const xt_node *node) {
  size_t count = 0;
  switch (node->kind) {
  case XT_NODE_LIST:
  case XT_NODE_TUPLE:
  case XT_NODE_SET:
  case XT_NODE_FROZENSET:
  case XT_NODE_SUBCLASS:
  case XT_NODE_DICT: return node->list.count;
  case XT_NODE_OBJECT:
    for (size_t i = 0; i < 5; i++) count += object_part(node, i) != NULL;
    return count;
  default: return 0;
  }
}

xt_child xt_child_at(const xt_node *node, size_t i) {
  if (node->kind == XT_NODE_DICT)
    return i % 2 ? (xt_child){node->list.items[i], XT_CHILD_VALUE, node->list.items[i - 1], 0}
                 : (xt_child){node->list.items[i], XT_CHILD_KEY, NULL, 0};
  if (node->kind == XT_NODE_SUBCLASS) return (xt_child){node->list.items[i], XT_CHILD_PART, NULL, (int64_t)i};
  if (node->kind != XT_NODE_OBJECT) return (xt_child){node->list.items[i], XT_CHILD_ITEM, NULL, (int64_t)i};
  size_t part = 0;
  for (;; part++)
    if (object_part(node, part) && i-- == 0)
      return (xt_child){object_part(node, part), XT_CHILD_PART, NULL, (int64_t)part};
}

/* ---- Names ---- */

typedef struct {
  char *text;
  size_t size, capacity;
  xt_allowance *allowance;
  bool failed;
} text_buffer;

static void put(text_buffer *out, const char *text, size_t size) {
  if (!size) return;
  if (out->size + size > out->capacity) {
    size_t capacity = 2 * (out->size + size) + 64;
    char *grown = NULL;
    if (xt_allowance_take(out->allowance, capacity - out->capacity)) grown = realloc(out->text, capacity);
    if (!grown) {
      out->failed = true;
      return;
    }
    out->text = grown;
    out->capacity = capacity;
  }
  memcpy(out->text + out->size, text, size);
  out->size += size;
}

static void put_key(text_buffer *out, const xt_node *key, int depth) {
  char number[64];
  switch (key->kind) {
  case XT_NODE_TEXT:
  case XT_NODE_RAW_TEXT:
  case XT_NODE_BYTES:
    if (depth) put(out, "'", 1);
    put(out, key->text.data, key->text.size);
    if (depth) put(out, "'", 1);
    return;
  case XT_NODE_INT: put(out, number, (size_t)snprintf(number, sizeof number, "%" PRId64, key->integer)); return;
  case XT_NODE_FLOAT: put(out, number, (size_t)snprintf(number, sizeof number, "%g", key->number)); return;
  case XT_NODE_BOOL: put(out, key->boolean ? "True" : "False", key->boolean ? 4 : 5); return;
  case XT_NODE_NONE: put(out, "None", 4); return;
  case XT_NODE_DTYPE: put(out, xt_dtype_get(key->dtype)->name, strlen(xt_dtype_get(key->dtype)->name)); return;
  case XT_NODE_GLOBAL:
    put(out, key->global.module, key->global.module_size);
    put(out, ".", 1);
    put(out, key->global.name, key->global.name_size);
    return;
  case XT_NODE_TUPLE:
    put(out, "(", 1);
    for (size_t i = 0; i < key->list.count && depth < 4; i++) {
      if (i) put(out, ", ", 2);
      put_key(out, key->list.items[i], depth + 1);
    }
    put(out, ")", 1);
    return;
  default: put(out, "?", 1);
  }
}

/* ---- The walk ---- */

/* The step from a container to one of its children. */
typedef struct {
  const xt_node *key; /* of a dict; NULL for a list or tuple */
  int64_t position;
  bool in_path; /* the step is part of paths and names */
} step;

typedef struct {
  xt_node *node;
  size_t next;          /* index of the next child */
  step step;            /* to this node */
  const xt_path *path;  /* of this node; set by make_paths */
  size_t steps;         /* number of steps of the path */
  uint64_t path_weight; /* of the terms of the path */
  size_t name_size;     /* length of this node's name, a prefix of walker.name */
  size_t first_entry;   /* number of entries before this node */
  bool in_key;
  bool is_state; /* the node is the dict of an object's attributes */
} frame;

typedef struct {
  xt_index *index;
  xt_arena *arena;
  const xt_index_limits *limits;
  xt_error *error;
  frame *stack;
  size_t depth;
  size_t paths; /* number of frames whose path is set */
  uint64_t nodes, weight;
  uint64_t key_weight; /* of the current dict key; each tensor below the key repeats it */
  int key_nodes;       /* number of its nodes */
  text_buffer name;
} walker;

enum { MAX_KEY_NODES = 1000, MAX_TUPLE = (1 << 24) - 1, MAX_INTEGER = 524280 /* bytes */ };

static xt_status no_memory(walker *w) {
  return xt_error_set(w->error, XT_STATUS_no_memory, "out of memory while indexing the tensors");
}

bool xt_index_reserve(xt_index *index, xt_arena *arena, size_t count) {
  xt_index_entry *entries = xt_arena_alloc(arena, count, sizeof *entries);
  size_t *same = xt_arena_alloc(arena, count, sizeof *same);
  if (!entries || !same || !xt_table_reserve(&index->names, count)) return false;
  if (index->count) {
    memcpy(entries, index->entries, index->count * sizeof *entries);
    memcpy(same, index->same, index->count * sizeof *same);
  }
  index->entries = entries;
  index->same = same;
  index->capacity = count;
  return true;
}

static xt_path *new_path(walker *w, const xt_path *parent, const step *to) {
  xt_path *path = xt_arena_alloc(w->arena, 1, sizeof *path);
  if (path) *path = (xt_path){parent, to->key, to->position};
  return path;
}

/* Sets the paths of all frames. Only containers with tensors need one. */
static bool make_paths(walker *w) {
  for (; w->paths < w->depth; w->paths++) {
    frame *at = &w->stack[w->paths];
    at->path = w->paths ? at[-1].path : NULL;
    if (at->step.in_path && !(at->path = new_path(w, at->path, &at->step))) return false;
  }
  return true;
}

/* The name of a tensor directly in the outermost dict is its key, which is not copied. */
static bool is_named_by_key(const walker *w, const xt_node *node, const step *to) {
  bool top = !w->depth || !w->stack[w->depth - 1].steps;
  return node->kind == XT_NODE_TENSOR && top && to->in_path && to->key && to->key->kind == XT_NODE_TEXT;
}

static xt_status add_entry(walker *w, const xt_node *node, const step *to) {
  xt_index *index = w->index;
  if (index->count == index->capacity && !xt_index_reserve(index, w->arena, index->capacity ? 2 * index->capacity : 64))
    return no_memory(w);
  if (!make_paths(w)) return no_memory(w);
  const xt_path *path = w->depth ? w->stack[w->depth - 1].path : NULL;
  if (to->in_path && !(path = new_path(w, path, to))) return no_memory(w);
  bool by_key = is_named_by_key(w, node, to), is_new;
  size_t size = by_key ? to->key->text.size : w->name.size;
  const char *name = by_key ? to->key->text.data : xt_arena_text(w->arena, w->name.text, size);
  if (!name || w->name.failed) return no_memory(w);
  size_t *latest = xt_table_put(&index->names, name, size, &is_new);
  if (!latest) return no_memory(w);
  size_t at = index->count++;
  index->entries[at] = (xt_index_entry){name, size, path, node->tensor};
  index->same[at] = is_new ? 0 : *latest + 1;
  *latest = at;
  if (!node->tensor->first_entry) node->tensor->first_entry = (uint32_t)at + 1;
  return XT_STATUS_ok;
}

/* Returns the weight of the path after the step. */
static uint64_t path_weight(const walker *w, const step *to) {
  uint64_t before = w->depth ? w->stack[w->depth - 1].path_weight : 0;
  return to->in_path ? before + XT_WEIGHT_STEP + (to->key ? w->key_weight : 0) : before;
}

/* Counts a node and its terms. The terms of a tensor are those of its entry. */
static xt_status weigh(walker *w, const xt_node *node, const step *to, bool in_key) {
  uint64_t bytes = xt_weight_of(node);
  if (node->kind == XT_NODE_TENSOR) bytes = xt_weight_of_entry(node->tensor) + path_weight(w, to) + w->name.size;
  if (in_key) w->key_weight += bytes;
  if (++w->nodes > w->limits->max_nodes)
    return xt_error_set(w->error, XT_STATUS_limit,
                        "the object has more than %" PRIu64
                        " nodes, counting shared ones each time; raise the limit with limits: [nodes: n]",
                        w->limits->max_nodes);
  w->weight += bytes;
  return xt_allowance_fits(w->arena->allowance, w->weight) ? XT_STATUS_ok : no_memory(w);
}

/* Numbers the node if it was visited before. Numbers are not given to what has no term of its own. */
static void mark_visited(walker *w, xt_node *node) {
  bool immediate = node->kind <= XT_NODE_INT || node->kind == XT_NODE_TENSOR;
  if (node->visited && !node->shared && !immediate) node->shared = ++w->index->shared;
  node->visited = true;
}

static xt_status enter(walker *w, xt_node *node, const step *to, bool in_key, bool is_state) {
  xt_status status = weigh(w, node, to, in_key);
  if (status != XT_STATUS_ok) return status;
  mark_visited(w, node);
  w->key_nodes = in_key ? w->key_nodes + 1 : 0;
  if (w->key_nodes > MAX_KEY_NODES)
    return xt_error_set(w->error, XT_STATUS_limit, "a dict key has more than %d nodes", MAX_KEY_NODES);
  if (node->kind == XT_NODE_TENSOR) {
    if (in_key) return xt_error_set(w->error, XT_STATUS_unsupported, "tensors as dict keys are not supported");
    return add_entry(w, node, to);
  }
  if (node->kind == XT_NODE_BIG && node->text.size > MAX_INTEGER)
    return xt_error_set(w->error, XT_STATUS_limit, "an integer has %zu bytes; Erlang integers have at most %d",
                        node->text.size, MAX_INTEGER);
  if (!xt_child_count(node)) return XT_STATUS_ok;
  if (node->kind == XT_NODE_TUPLE && node->list.count > MAX_TUPLE)
    return xt_error_set(w->error, XT_STATUS_limit, "a tuple has %zu items; Erlang tuples have at most %d",
                        node->list.count, MAX_TUPLE);
  if (node->on_path)
    return xt_error_set(w->error, XT_STATUS_corrupt, "the object contains itself, which Elixir terms cannot represent");
  if (w->depth == w->limits->max_depth)
    return xt_error_set(w->error, XT_STATUS_limit,
                        "the object is nested deeper than %u levels; raise the limit with limits: [depth: n]",
                        w->limits->max_depth);
  size_t steps = (w->depth ? w->stack[w->depth - 1].steps : 0) + to->in_path;
  frame below = {.node = node, .step = *to, .steps = steps, .path_weight = path_weight(w, to)};
  below.name_size = w->name.size;
  below.first_entry = w->index->count;
  below.in_key = in_key;
  below.is_state = is_state;
  node->on_path = true;
  w->stack[w->depth++] = below;
  return XT_STATUS_ok;
}

static void leave(walker *w) {
  frame *at = &w->stack[--w->depth];
  at->node->on_path = false;
  at->node->has_tensors = w->index->count > at->first_entry;
  if (w->paths > w->depth) w->paths = w->depth;
}

/* Returns true for the dicts in which an nn.Module keeps its parameters, buffers and submodules. They are not part of
 * the names, as in a state dict. */
static bool is_module_dict(const frame *at, const xt_child *child) {
  return at->is_state && child->key && child->node->kind == XT_NODE_DICT &&
         (xt_node_is_text(child->key, "_parameters", 11) || xt_node_is_text(child->key, "_buffers", 8) ||
          xt_node_is_text(child->key, "_modules", 8));
}

static xt_status visit(walker *w) {
  frame *at = &w->stack[w->depth - 1];
  w->name.size = at->name_size;
  if (at->next == xt_child_count(at->node)) {
    leave(w);
    return XT_STATUS_ok;
  }
  xt_child child = xt_child_at(at->node, at->next++);
  bool in_key = at->in_key || child.role == XT_CHILD_KEY;
  if (in_key && !at->in_key) w->key_weight = 0;
  bool is_state = child.role == XT_CHILD_PART && child.position == 2;
  bool may_have_tensors = child.node->kind == XT_NODE_TENSOR || xt_child_count(child.node);
  step to = {child.key, child.position,
             (child.role == XT_CHILD_ITEM || child.role == XT_CHILD_VALUE) && !is_module_dict(at, &child) &&
                 may_have_tensors && !in_key};
  if (to.in_path && !is_named_by_key(w, child.node, &to)) {
    if (at->steps) put(&w->name, ".", 1);
    xt_node position = {.kind = XT_NODE_INT, .integer = child.position};
    put_key(&w->name, child.key ? child.key : &position, 0);
  }
  return enter(w, child.node, &to, in_key, is_state);
}

xt_status xt_index_build(xt_index *index, xt_arena *arena, xt_node *root, const xt_index_limits *limits,
                         xt_error *error) {
  walker w = {
      .index = index, .arena = arena, .limits = limits, .error = error, .name = {.allowance = arena->allowance}};
  step to = {NULL, 0, false};
  w.stack = malloc(limits->max_depth * sizeof *w.stack);
  xt_status status = w.stack ? enter(&w, root, &to, false, false) : no_memory(&w);
  while (status == XT_STATUS_ok && w.depth) status = visit(&w);
  free(w.stack);
  free(w.name.text);
  xt_allowance_return(arena->allowance, w.name.capacity);
  return status;
}

void xt_index_free(xt_index *index) {
  xt_table_free(&index->names);
  *index = (xt_index){0};
}
