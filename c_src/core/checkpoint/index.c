#include "core/checkpoint/index.h"
#include "core/checkpoint/weight.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/array.h"

/* ---- Children ---- */

enum { OBJECT_PARTS = 5 };

static xt_node **object_part(const xt_node *node, size_t i) {
  xt_node **parts[OBJECT_PARTS] = {&node->object->callable, &node->object->args, &node->object->state,
                                   &node->object->list, &node->object->dict};
  return parts[i];
}

size_t xt_child_count(const xt_node *node) {
  size_t count = 0;
  switch (node->kind) {
  case XT_NODE_LIST:
  case XT_NODE_TUPLE:
  case XT_NODE_SET:
  case XT_NODE_FROZENSET:
  case XT_NODE_SUBCLASS:
  case XT_NODE_BARE:
  case XT_NODE_DICT: return node->list.count;
  case XT_NODE_OBJECT:
    for (size_t i = 0; i < OBJECT_PARTS; i++) count += *object_part(node, i) != NULL;
    return count;
  default: return 0;
  }
}

xt_child xt_child_at(const xt_node *node, size_t i) {
  size_t part = 0;
  if (node->kind == XT_NODE_OBJECT) {
    while (!*object_part(node, part) || i-- > 0) part++;
    xt_node **slot = object_part(node, part);
    return (xt_child){*slot, slot, XT_CHILD_PART, NULL, (int64_t)part};
  }
  xt_node **slot = &node->list.items[i];
  if (node->kind == XT_NODE_DICT)
    return i % 2 ? (xt_child){*slot, slot, XT_CHILD_VALUE, slot[-1], 0}
                 : (xt_child){*slot, slot, XT_CHILD_KEY, NULL, 0};
  bool is_part = node->kind == XT_NODE_SUBCLASS || node->kind == XT_NODE_BARE;
  return (xt_child){*slot, slot, is_part ? XT_CHILD_PART : XT_CHILD_ITEM, NULL, (int64_t)i};
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
  if (!xt_allowance_reserve(out->allowance, &out->text, &out->capacity, out->size + size, 1)) {
    out->failed = true;
    return;
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
  int64_t place; /* the position in the path of the place */
  bool in_path;  /* the step is part of paths and names */
} step;

typedef struct {
  xt_node *node;
  size_t next;          /* index of the next child */
  step step;            /* to this node */
  const xt_path *path;  /* of this node; set by make_paths */
  size_t steps;         /* number of steps of the path */
  uint64_t path_weight; /* of the terms of the path */
  const xt_path *place; /* of this node; set by make_places */
  uint64_t place_weight;
  size_t lowest;      /* the outermost frame that a reference below this node points to */
  size_t name_size;   /* length of this node's name, a prefix of walker.name */
  size_t first_entry; /* number of entries before this node */
  bool in_key;
  bool is_state; /* the node is the dict of an object's attributes */
} frame;

typedef struct {
  xt_index *index;
  xt_arena *arena;
  const xt_index_limits *limits;
  xt_error *error;
  frame *stack;
  size_t depth, room;
  size_t paths;  /* number of frames whose path is set */
  size_t places; /* number of frames whose place is set */
  xt_table open; /* node → its open_node */
  uint64_t nodes, weight;
  uint64_t key_weight; /* of the current dict key; each tensor below the key repeats it */
  int key_nodes;       /* number of its nodes */
  text_buffer name;
} walker;

enum { MAX_KEY_NODES = 1000, MAX_TUPLE = (1 << 24) - 1, MAX_INTEGER = 16384 /* bytes */ };

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

static uint64_t step_weight(const walker *w, const step *to) { return XT_WEIGHT_STEP + (to->key ? w->key_weight : 0); }

/* Returns the weight of the path after the step. */
static uint64_t path_weight(const walker *w, const step *to) {
  uint64_t before = w->depth ? w->stack[w->depth - 1].path_weight : 0;
  return to->in_path ? before + step_weight(w, to) : before;
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
  if (!node->visited) w->index->on_heap += xt_weight_on_heap(node);
  return xt_allowance_fits(w->arena->allowance, w->weight) ? XT_STATUS_ok : no_memory(w);
}

/* Numbers the node if it was visited before. Numbers are not given to what has no term of its own. */
static void mark_visited(walker *w, xt_node *node) {
  bool immediate = node->kind <= XT_NODE_INT || node->kind == XT_NODE_TENSOR;
  if (node->visited && !node->shared && !immediate) node->shared = ++w->index->shared;
  node->visited = true;
}

/* Makes a tensor of the elements of a storage, so that they can be read like those of any other. */
static xt_status make_bare(walker *w, xt_node *node) {
  xt_storage_view view = node->storage;
  xt_storages *storages = w->index->storages;
  int64_t count = view.count < 0 ? storages->list[view.index].numel : view.count, one = 1;
  xt_node *tensor = xt_node_new_tensor(w->arena);
  if (!tensor) return no_memory(w);
  node->kind = XT_NODE_BARE;
  node->list.items = NULL;
  node->list.count = node->list.room = 0;
  tensor->tensor->bare = true;
  if (!xt_node_append(w->arena, node, tensor)) return no_memory(w);
  xt_status status = xt_tensor_desc_set_strided(tensor->tensor, storages, &view, 0, &count, &one, 1, -1, w->error);
  tensor->tensor->dtype = xt_dtype_plain(tensor->tensor->dtype);
  return status;
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
    return xt_error_set(w->error, XT_STATUS_limit,
                        "an integer has %zu bytes; at most %d are supported, because printing larger ones takes long",
                        node->text.size, MAX_INTEGER);
  if (node->kind == XT_NODE_STORAGE && !in_key && (status = make_bare(w, node)) != XT_STATUS_ok) return status;
  if (!xt_child_count(node)) return XT_STATUS_ok;
  if (node->kind == XT_NODE_TUPLE && node->list.count > MAX_TUPLE)
    return xt_error_set(w->error, XT_STATUS_limit, "a tuple has %zu items; Erlang tuples have at most %d",
                        node->list.count, MAX_TUPLE);
  if (w->depth == w->limits->max_depth)
    return xt_error_set(w->error, XT_STATUS_limit,
                        "the object is nested deeper than %u levels; raise the limit with limits: [depth: n]",
                        w->limits->max_depth);
  size_t steps = (w->depth ? w->stack[w->depth - 1].steps : 0) + to->in_path;
  frame below = {.node = node, .step = *to, .steps = steps, .path_weight = path_weight(w, to), .lowest = w->depth};
  below.place_weight = w->depth ? w->stack[w->depth - 1].place_weight + step_weight(w, to) : 0;
  below.name_size = w->name.size;
  below.first_entry = w->index->count;
  below.in_key = in_key;
  below.is_state = is_state;
  if (!xt_array_reserve(&w->stack, &w->room, w->depth + 1, sizeof below)) return no_memory(w);
  node->on_path = true;
  w->stack[w->depth++] = below;
  return XT_STATUS_ok;
}

/* ---- Cycles ---- */

/* A container that references lead out of, where it was found first. */
typedef struct {
  const xt_node *node, *parent;
  const xt_path *place;
  size_t level; /* number of steps of the place */
  uint64_t weight;
} open_node;

/* Sets the places of all frames. That of the root is NULL. */
static bool make_places(walker *w) {
  for (; w->places < w->depth; w->places++) {
    frame *at = &w->stack[w->places];
    if (!w->places) continue;
    xt_path *place = xt_arena_alloc(w->arena, 1, sizeof *place);
    if (!place) return false;
    *place = (xt_path){at[-1].place, at->step.key, at->step.place};
    at->place = place;
  }
  return true;
}

static xt_status add_open(walker *w, frame *at, size_t level) {
  open_node *open = xt_arena_alloc(w->arena, 1, sizeof *open);
  bool is_new;
  if (!open || !make_places(w)) return no_memory(w);
  *open = (open_node){at->node, at[-1].node, at->place, level, at->place_weight};
  size_t *slot = xt_table_put(&w->open, &open->node, sizeof open->node, &is_new);
  if (!slot) return no_memory(w);
  *slot = (size_t)open;
  at->node->open = true;
  return XT_STATUS_ok;
}

static const open_node *find_open(const walker *w, const xt_node *node) {
  size_t *slot = node->open ? xt_table_get(&w->open, &node, sizeof node) : NULL;
  return slot ? (const open_node *)*slot : NULL;
}

/* Returns the level of the innermost frame that contains the place. */
static size_t common_level(const walker *w, const open_node *target) {
  const xt_path *place = target->place;
  size_t level = target->level;
  for (; level >= w->depth || w->stack[level].place != place; level--) place = place->parent;
  return level;
}

/* Replaces a child by a reference to its place, if the walk is inside it or its own references would be wrong here. */
static xt_status cut(walker *w, xt_child *child) {
  xt_node *node = child->node;
  const open_node *open = find_open(w, node);
  if (open && open->parent == w->stack[w->depth - 1].node) open = NULL;
  if (!node->on_path && !open) return XT_STATUS_ok;
  xt_node *ref = xt_node_new(w->arena, XT_NODE_REF);
  if (!ref || !make_places(w)) return no_memory(w);
  size_t level = w->depth;
  if (node->on_path) {
    while (w->stack[--level].node != node) continue;
    ref->ref.place = w->stack[level].place;
    ref->ref.weight = w->stack[level].place_weight;
  } else {
    level = common_level(w, open);
    ref->ref.place = open->place;
    ref->ref.down = (uint32_t)(open->level - level);
    ref->ref.weight = 2 * open->weight;
  }
  ref->ref.up = (uint32_t)(w->depth - level);
  *child->slot = child->node = ref;
  return XT_STATUS_ok;
}

static void lower(frame *at, size_t level) {
  if (level < at->lowest) at->lowest = level;
}

static xt_status leave(walker *w) {
  size_t level = w->depth - 1;
  frame *at = &w->stack[level];
  if (at->lowest < level) {
    if (!at->node->open) {
      xt_status status = add_open(w, at, level);
      if (status != XT_STATUS_ok) return status;
    }
    lower(at - 1, at->lowest);
  }
  at->node->on_path = false;
  at->node->has_tensors = w->index->count > at->first_entry;
  w->depth--;
  if (w->paths > w->depth) w->paths = w->depth;
  if (w->places > w->depth) w->places = w->depth;
  return XT_STATUS_ok;
}

/* Returns true for the dicts in which an nn.Module keeps its parameters, buffers and submodules. They are not part of
 * the names, as in a state dict. */
static bool is_module_dict(const frame *at, const xt_child *child) {
  return at->is_state && child->key && child->node->kind == XT_NODE_DICT &&
         (xt_node_is_text(child->key, "_parameters", 11) || xt_node_is_text(child->key, "_buffers", 8) ||
          xt_node_is_text(child->key, "_modules", 8));
}

/* Returns the position of a child in the path of its place. */
static int64_t place_step(const xt_node *parent, const xt_child *child) {
  static const xt_part subclass_parts[] = {XT_PART_TENSOR, XT_PART_CLASS, XT_PART_STATE};
  if (child->role == XT_CHILD_KEY) return XT_PART_STEP(XT_PART_KEY);
  if (child->role != XT_CHILD_PART) return child->position;
  return XT_PART_STEP(parent->kind == XT_NODE_OBJECT ? child->position : subclass_parts[child->position]);
}

static xt_status visit(walker *w) {
  frame *at = &w->stack[w->depth - 1];
  w->name.size = at->name_size;
  if (at->next == xt_child_count(at->node)) return leave(w);
  xt_child child = xt_child_at(at->node, at->next++);
  xt_status status = cut(w, &child);
  if (status != XT_STATUS_ok) return status;
  if (child.node->kind == XT_NODE_REF) lower(at, w->depth - child.node->ref.up);
  bool in_key = at->in_key || child.role == XT_CHILD_KEY;
  if (in_key && !at->in_key) w->key_weight = 0;
  bool is_state = child.role == XT_CHILD_PART && child.position == 2;
  bool may_have_tensors =
      child.node->kind == XT_NODE_TENSOR || child.node->kind == XT_NODE_STORAGE || xt_child_count(child.node);
  step to = {child.key, child.position, place_step(at->node, &child),
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
  walker w = {.index = index, .arena = arena, .limits = limits, .error = error};
  w.name.allowance = w.open.allowance = arena->allowance;
  step to = {NULL, 0, 0, false};
  xt_status status = enter(&w, root, &to, false, false);
  while (status == XT_STATUS_ok && w.depth) status = visit(&w);
  index->weight += w.weight;
  free(w.stack);
  free(w.name.text);
  xt_table_free(&w.open);
  xt_allowance_return(arena->allowance, w.name.capacity);
  return status;
}

void xt_index_free(xt_index *index) {
  xt_table_free(&index->names);
  *index = (xt_index){0};
}
