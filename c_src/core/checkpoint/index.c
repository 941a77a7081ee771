#include "core/checkpoint/index.h"

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
  bool failed;
} text_buffer;

static void put(text_buffer *out, const char *text, size_t size) {
  if (!size) return;
  if (out->size + size > out->capacity) {
    size_t capacity = 2 * (out->size + size) + 64;
    char *grown = realloc(out->text, capacity);
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

typedef struct {
  xt_node *node;
  size_t next;         /* index of the next child */
  const xt_path *path; /* of this node */
  size_t name_size;    /* length of this node's name, a prefix of walker.name */
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
  uint64_t nodes;
  int key_nodes; /* nodes of the current dict key; limited, because each tensor below the key repeats it */
  text_buffer name;
} walker;

enum { ON_STACK = 1, MAX_KEY_NODES = 1000, TEXT_COST = 16, MAX_TUPLE = (1 << 24) - 1 };

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

/* Returns true for a tensor in the outermost dict with a text key: the key is the whole name and needs no copy. */
static bool is_top_level(const xt_path *path, const xt_node *node) {
  return node->kind == XT_NODE_TENSOR && path && !path->parent && path->key && path->key->kind == XT_NODE_TEXT;
}

static xt_status add_entry(walker *w, const xt_node *node, const xt_path *path) {
  xt_index *index = w->index;
  if (index->count == index->capacity && !xt_index_reserve(index, w->arena, index->capacity ? 2 * index->capacity : 64))
    return no_memory(w);
  bool is_named_by_key = is_top_level(path, node), is_new;
  size_t size = is_named_by_key ? path->key->text.size : w->name.size;
  const char *name = is_named_by_key ? path->key->text.data : xt_arena_text(w->arena, w->name.text, size);
  if (!name || w->name.failed) return no_memory(w);
  size_t *latest = xt_table_put(&index->names, name, size, &is_new);
  if (!latest) return no_memory(w);
  size_t at = index->count++;
  index->entries[at] = (xt_index_entry){name, size, path, node->tensor};
  index->same[at] = is_new ? 0 : *latest + 1;
  *latest = at;
  return XT_STATUS_ok;
}

/* Long texts count as several nodes, and so do the name and path of a tensor: they are created again at each visit. */
static uint64_t cost(const walker *w, const xt_node *node) {
  switch (node->kind) {
  case XT_NODE_BIG:
  case XT_NODE_TEXT:
  case XT_NODE_RAW_TEXT:
  case XT_NODE_BYTES:
  case XT_NODE_BYTEARRAY: return node->text.size / TEXT_COST;
  case XT_NODE_GLOBAL: return (node->global.module_size + node->global.name_size) / TEXT_COST;
  case XT_NODE_DEVICE: return node->device.type_size / TEXT_COST;
  case XT_NODE_TENSOR:
    return w->name.size / TEXT_COST + w->depth / 8; /* a name that is only a key was counted as such */
  default: return 0;
  }
}

static xt_status enter(walker *w, xt_node *node, const xt_path *path, bool in_key, bool is_state) {
  w->nodes += 1 + cost(w, node);
  if (w->nodes > w->limits->max_nodes)
    return xt_error_set(w->error, XT_STATUS_limit,
                        "the object has more than %" PRIu64
                        " nodes, counting shared ones each time; raise the limit with limits: [nodes: n]",
                        w->limits->max_nodes);
  w->key_nodes = in_key ? w->key_nodes + 1 : 0;
  if (w->key_nodes > MAX_KEY_NODES)
    return xt_error_set(w->error, XT_STATUS_limit, "a dict key has more than %d nodes", MAX_KEY_NODES);
  if (node->kind == XT_NODE_TENSOR) {
    if (in_key) return xt_error_set(w->error, XT_STATUS_unsupported, "tensors as dict keys are not supported");
    return add_entry(w, node, path);
  }
  if (!xt_child_count(node)) return XT_STATUS_ok;
  if (node->kind == XT_NODE_TUPLE && node->list.count > MAX_TUPLE)
    return xt_error_set(w->error, XT_STATUS_limit, "a tuple has %zu items; Erlang tuples have at most %d",
                        node->list.count, MAX_TUPLE);
  if (node->walk == ON_STACK)
    return xt_error_set(w->error, XT_STATUS_corrupt, "the object contains itself, which Elixir terms cannot represent");
  if (w->depth == w->limits->max_depth)
    return xt_error_set(w->error, XT_STATUS_limit,
                        "the object is nested deeper than %u levels; raise the limit with limits: [depth: n]",
                        w->limits->max_depth);
  node->walk = ON_STACK;
  w->stack[w->depth++] = (frame){node, 0, path, w->name.size, in_key, is_state};
  return XT_STATUS_ok;
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
    at->node->walk = 0;
    w->depth--;
    return XT_STATUS_ok;
  }
  xt_child child = xt_child_at(at->node, at->next++);
  bool in_key = at->in_key || child.role == XT_CHILD_KEY;
  bool in_path = (child.role == XT_CHILD_ITEM || child.role == XT_CHILD_VALUE) && !is_module_dict(at, &child);
  bool is_state = child.role == XT_CHILD_PART && child.position == 2;
  bool may_have_tensors = child.node->kind == XT_NODE_TENSOR || xt_child_count(child.node);
  const xt_path *path = at->path;
  if (in_path && may_have_tensors && !in_key) {
    xt_path *step = xt_arena_alloc(w->arena, 1, sizeof *step);
    if (!step) return no_memory(w);
    *step = (xt_path){at->path, child.key, child.position};
    path = step;
    if (is_top_level(step, child.node)) return enter(w, child.node, path, in_key, is_state);
    if (at->path) put(&w->name, ".", 1);
    xt_node position = {.kind = XT_NODE_INT, .integer = child.position};
    put_key(&w->name, child.key ? child.key : &position, 0);
  }
  return enter(w, child.node, path, in_key, is_state);
}

xt_status xt_index_build(xt_index *index, xt_arena *arena, xt_node *root, const xt_index_limits *limits,
                         xt_error *error) {
  walker w = {.index = index, .arena = arena, .limits = limits, .error = error};
  w.stack = malloc(limits->max_depth * sizeof *w.stack);
  xt_status status = w.stack ? enter(&w, root, NULL, false, false) : no_memory(&w);
  while (status == XT_STATUS_ok && w.depth) status = visit(&w);
  free(w.stack);
  free(w.name.text);
  return status;
}

void xt_index_free(xt_index *index) {
  xt_table_free(&index->names);
  *index = (xt_index){0};
}
