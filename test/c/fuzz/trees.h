/* Random object trees: made from the input, written as a draft, and compared with what is read back.
 *
 * Tensors are views of blocks of memory. In the description of a tensor that is made, `storage` is its block, `conj`
 * says that its view is staged, `neg` that it is untyped, and `first_entry` is 1 + its view in the plan. */
#ifndef XT_FUZZ_TREES_H
#define XT_FUZZ_TREES_H

#include "containers.h"
#include "core/base/decimal.h"
#include "core/base/utf8.h"
#include "core/checkpoint/draft.h"
#include "reading.h"

enum { MAX_BLOCKS = 24, MAX_TREE = 300, MAX_TREE_DEPTH = 8 };

typedef struct {
  xt_dtype dtype;
  int64_t numel;
  uint64_t bytes;
  uint8_t *data;
  uint32_t read[2]; /* 1 + the storage of its typed and untyped views that was read back */
} block;

typedef struct {
  choices *in;
  xt_arena *arena;
  int nodes;
  block blocks[MAX_BLOCKS];
  size_t count;
  xt_draft *draft;
  int kept; /* owners that were not dropped */
} forest;

/* ---- Making ---- */

static void choose_text(choices *in, xt_arena *arena, const char **data, size_t *size) {
  char text[200];
  size_t count = choose_byte(in);
  if (count == 255) { /* makes the pickle so large that the writer does not copy it */
    char *large = xt_arena_alloc(arena, *size = 66000, 1);
    memset(large, 'x', *size);
    *data = large;
    return;
  }
  count %= 24;
  *size = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t c = choose_byte(in);
    if (c >= 0xC0) c = (uint32_t)choose_number(in, 3) % 0x110000;
    if (c >= 0xD800 && c < 0xE000) c = 'x';
    *size += xt_utf8_encode(text + *size, c);
  }
  *data = xt_arena_text(arena, text, *size);
}

static xt_node *make_tree(forest *f, int depth);

static void append_trees(forest *f, xt_node *list, size_t count, int depth) {
  for (size_t i = 0; i < count; i++) REQUIRE(xt_node_append(f->arena, list, make_tree(f, depth)));
}

static xt_node *make_name(forest *f) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
  xt_node *node = xt_node_new(f->arena, XT_NODE_GLOBAL);
  char text[2][32] = {"my.", ""};
  for (int part = 0; part < 2; part++) {
    size_t size = strlen(text[part]), more = 1 + choose_byte(f->in) % 12;
    while (more-- > 0) text[part][size++] = letters[choose_byte(f->in) % (sizeof letters - 1)];
    text[part][size] = 0;
  }
  node->global.module = xt_arena_text(f->arena, text[0], node->global.module_size = strlen(text[0]));
  node->global.name = xt_arena_text(f->arena, text[1], node->global.name_size = strlen(text[1]));
  return node;
}

static xt_dtype choose_dtype(choices *in) { return (xt_dtype)(choose_byte(in) % XT_DTYPE_COUNT); }

static size_t make_block(forest *f, xt_dtype dtype, int64_t numel) {
  block *b = &f->blocks[f->count];
  char key[] = {(char)f->count};
  *b = (block){.dtype = dtype, .numel = numel, .bytes = (uint64_t)numel * xt_dtype_get(dtype)->size};
  b->data = malloc(b->bytes + 1);
  fill_content(key, 1, b->data, b->bytes);
  return f->count++;
}

/* A view of a new block or of one that another tensor uses. */
static xt_node *make_tensor(forest *f) {
  choices *in = f->in;
  xt_node *node = xt_node_new(f->arena, XT_NODE_TENSOR);
  xt_tensor_desc *t = node->tensor = xt_arena_alloc(f->arena, 1, sizeof *t);
  t->ndim = choose_byte(in) % 5;
  t->sizes = xt_arena_alloc(f->arena, t->ndim, sizeof *t->sizes);
  t->strides = xt_arena_alloc(f->arena, t->ndim, sizeof *t->strides);
  uint8_t how = choose_byte(in);
  int64_t step = 1, last = 0;
  for (uint32_t d = t->ndim; d-- > 0;) {
    t->sizes[d] = choose_byte(in) % 6;
    t->strides[d] = how & 1 ? choose_byte(in) % 9 : step;
    step *= t->sizes[d] ? t->sizes[d] : 1;
    if (t->sizes[d]) last += (t->sizes[d] - 1) * t->strides[d];
  }
  t->offset = how & 2 ? choose_byte(in) : 0;
  t->requires_grad = how & 4;
  t->conj = how & 8;
  t->neg = !t->conj && how & 16;
  last += t->offset + 1;
  size_t i = choose_below(in, f->count + 1);
  bool fits = i < f->count && f->blocks[i].numel >= last;
  if (!fits && f->count == MAX_BLOCKS) return node->kind = XT_NODE_NONE, node;
  if (!fits) {
    xt_dtype dtype = choose_dtype(in);
    int64_t item = (int64_t)xt_dtype_get(dtype)->size;
    bool large = how >> 5 == 7 && choose_byte(in) == 1; /* the writer does not copy payloads of more than 64 KiB */
    i = make_block(f, dtype, last + (large ? 100000 * (1 + choose_byte(in) % 3) / item : how >> 6));
  }
  t->storage = (how & 28) == 28 ? XT_NO_STORAGE : (uint32_t)i; /* a meta tensor has none */
  t->dtype = f->blocks[i].dtype;
  return node;
}

/* A storage outside a tensor: all of a block. */
static xt_node *make_bare(forest *f, xt_node *node) {
  uint8_t how = choose_byte(f->in);
  size_t i = choose_below(f->in, f->count + 1);
  if (i == f->count && f->count < MAX_BLOCKS) make_block(f, choose_dtype(f->in), how >> 1);
  bool typed = i < f->count && *xt_dtype_get(f->blocks[i].dtype)->storage;
  if (!typed) return node->kind = XT_NODE_NONE, node;
  xt_node *elements = xt_node_new_tensor(f->arena);
  xt_tensor_desc *t = elements->tensor;
  t->ndim = 1;
  t->sizes = xt_arena_alloc(f->arena, 2, sizeof *t->sizes);
  t->strides = t->sizes + 1;
  t->sizes[0] = f->blocks[i].numel;
  t->strides[0] = 1;
  t->storage = (uint32_t)i;
  t->dtype = xt_dtype_plain(f->blocks[i].dtype);
  t->bare = true;
  t->conj = how & 1;
  REQUIRE(xt_node_append(f->arena, node, elements));
  return node;
}

static xt_node *make_number(forest *f, xt_node *node) {
  uint64_t bits = choose_number(f->in, 8);
  switch (node->kind) {
  case XT_NODE_INT: node->integer = (int64_t)(bits << (8 * (choose_byte(f->in) % 8))); break;
  case XT_NODE_FLOAT: memcpy(&node->number, &bits, 8); break;
  default: memcpy(&node->complex.re, &bits, 8); node->complex.im = (double)choose_byte(f->in) / 8 - 3;
  }
  return node;
}

/* Two's complement with one byte more than the magnitude. */
static xt_node *make_big(forest *f, xt_node *node) {
  size_t size = 9 + choose_byte(f->in) * (size_t)(choose_byte(f->in) % 3);
  char *data = xt_arena_alloc(f->arena, size, 1);
  fill_content(data, 0, (uint8_t *)data, size);
  data[0] = (char)choose_byte(f->in);
  data[size - 1] = choose_byte(f->in) % 2 ? -1 : 0;
  node->text.data = data;
  node->text.size = size;
  bool zero = true; /* the magnitude of this negative number has one byte more */
  for (size_t i = 0; i + 1 < size; i++) zero &= !data[i];
  if (zero) data[size - 1] = 0;
  return node;
}

static xt_node *make_object(forest *f, xt_node *node, int depth) {
  node->object->callable = make_name(f);
  node->object->args = xt_node_new(f->arena, XT_NODE_TUPLE);
  node->object->is_new = true;
  append_trees(f, node->object->args, choose_byte(f->in) % 3, depth);
  if (choose_byte(f->in) % 2) node->object->state = make_tree(f, depth);
  return node;
}

static xt_node *make_tree(forest *f, int depth) {
  static const xt_node_kind leaves[] = {XT_NODE_NONE,   XT_NODE_BOOL,   XT_NODE_INT,     XT_NODE_BIG,   XT_NODE_FLOAT,
                                        XT_NODE_TEXT,   XT_NODE_BYTES,  XT_NODE_COMPLEX, XT_NODE_DTYPE, XT_NODE_DEVICE,
                                        XT_NODE_TENSOR, XT_NODE_TENSOR, XT_NODE_BARE};
  static const xt_node_kind branches[] = {XT_NODE_LIST, XT_NODE_TUPLE, XT_NODE_DICT, XT_NODE_SET, XT_NODE_OBJECT};
  uint8_t kind = choose_byte(f->in);
  bool leaf = depth >= MAX_TREE_DEPTH || ++f->nodes > MAX_TREE || kind % 2;
  xt_node *node = xt_node_new(f->arena, leaf ? leaves[kind / 2 % 13] : branches[kind / 2 % 5]);
  switch (node->kind) {
  case XT_NODE_BOOL: node->boolean = choose_byte(f->in) % 2; break;
  case XT_NODE_INT:
  case XT_NODE_FLOAT:
  case XT_NODE_COMPLEX: return make_number(f, node);
  case XT_NODE_BIG: return make_big(f, node);
  case XT_NODE_TEXT:
  case XT_NODE_BYTES: choose_text(f->in, f->arena, &node->text.data, &node->text.size); break;
  case XT_NODE_DTYPE: node->dtype = choose_dtype(f->in); break;
  case XT_NODE_DEVICE:
    choose_text(f->in, f->arena, &node->device.type, &node->device.type_size);
    node->device.index = choose_byte(f->in);
    break;
  case XT_NODE_TENSOR: return make_tensor(f);
  case XT_NODE_BARE: return make_bare(f, node);
  case XT_NODE_OBJECT: return make_object(f, node, depth + 1);
  case XT_NODE_SET: /* tensors and containers are not hashable */
    for (size_t count = choose_byte(f->in) % 4; count > 0; count--) append_trees(f, node, 1, MAX_TREE_DEPTH);
    break;
  case XT_NODE_DICT:
    for (size_t count = choose_byte(f->in) % 8; count > 0; count--) {
      xt_node *key = xt_node_new(f->arena, choose_byte(f->in) % 4 ? XT_NODE_TEXT : XT_NODE_INT);
      if (key->kind == XT_NODE_TEXT) choose_text(f->in, f->arena, &key->text.data, &key->text.size);
      else make_number(f, key);
      REQUIRE(xt_node_append(f->arena, node, key));
      append_trees(f, node, 1, depth + 1);
    }
    break;
  case XT_NODE_LIST:
  case XT_NODE_TUPLE: append_trees(f, node, choose_byte(f->in) % 8, depth + 1); break;
  default: break;
  }
  return node;
}

static void free_forest(forest *f) {
  for (size_t i = 0; i < f->count; i++) free(f->blocks[i].data);
}

/* ---- Writing ---- */

static void write_tree(xt_pickler *p, forest *f, const xt_node *node);

static void write_items(xt_pickler *p, forest *f, const xt_node *node) {
  for (size_t i = 0; i < node->list.count; i++) write_tree(p, f, node->list.items[i]);
}

static void write_tuple(xt_pickler *p, forest *f, const xt_node *node) {
  if (node->list.count > 3) xt_pickler_put_mark(p);
  write_items(p, f, node);
  if (node->list.count > 3) xt_pickler_put_tuple(p);
  else xt_pickler_put_tuple_of(p, (int)node->list.count);
}

static void write_list(xt_pickler *p, forest *f, const xt_node *node) {
  xt_pickler_put_list(p);
  xt_pickler_put_mark(p);
  write_items(p, f, node);
  xt_pickler_put_appends(p);
}

static void write_big(xt_pickler *p, const xt_node *node) {
  uint8_t magnitude[1024];
  size_t size = node->text.size - 1;
  bool negative = node->text.data[size] != 0;
  unsigned carry = 1;
  for (size_t i = 0; i < size; i++) {
    uint8_t byte = (uint8_t)node->text.data[i];
    unsigned value = negative ? (uint8_t)~byte + carry : byte;
    carry = value >> 8;
    magnitude[i] = (uint8_t)value;
  }
  xt_pickler_put_big(p, magnitude, size, negative);
}

static void drop_owner(void *owner) { ((forest *)owner)->kept--; }

static xt_save_view view_of(forest *f, size_t i, int ndim, const int64_t *sizes, const int64_t *strides,
                            int64_t offset) {
  const block *b = &f->blocks[i];
  f->kept++;
  return (xt_save_view){.dtype = b->dtype,
                        .ndim = ndim,
                        .sizes = sizes,
                        .strides = strides,
                        .data = b->data + (uint64_t)offset * xt_dtype_get(b->dtype)->size,
                        .storage = b->data,
                        .storage_bytes = b->bytes,
                        .owner = f,
                        .drop = drop_owner};
}

static void write_tensor(forest *f, xt_tensor_desc *t) {
  xt_save_tensor tensor = {.kind = XT_SAVE_META,
                           .dtype = t->dtype,
                           .ndim = (int)t->ndim,
                           .sizes = t->sizes,
                           .strides = t->strides,
                           .requires_grad = t->requires_grad};
  if (t->storage != XT_NO_STORAGE) {
    tensor.kind = XT_SAVE_STRIDED;
    tensor.view_count = 1;
    tensor.views[0] = view_of(f, t->storage, (int)t->ndim, t->sizes, t->strides, t->offset);
    tensor.views[0].staged = t->conj;
    tensor.views[0].untyped = t->neg;
    REQUIRE(!xt_save_view_problem(&tensor.views[0]));
    t->first_entry = (uint32_t)f->draft->plan->view_count + 1;
  }
  xt_draft_put_tensor(f->draft, &tensor);
}

static void write_bare(forest *f, xt_tensor_desc *t) {
  xt_save_view view = view_of(f, t->storage, 1, t->sizes, t->strides, 0);
  view.staged = t->conj;
  view.bare = true;
  t->first_entry = (uint32_t)f->draft->plan->view_count + 1;
  xt_draft_put_storage(f->draft, &view);
}

static void write_tree(xt_pickler *p, forest *f, const xt_node *node) {
  switch (node->kind) {
  case XT_NODE_NONE: xt_pickler_put_none(p); break;
  case XT_NODE_BOOL: xt_pickler_put_bool(p, node->boolean); break;
  case XT_NODE_INT: xt_pickler_put_int(p, node->integer); break;
  case XT_NODE_BIG: write_big(p, node); break;
  case XT_NODE_FLOAT: xt_pickler_put_float(p, node->number); break;
  case XT_NODE_TEXT: xt_pickler_put_text(p, node->text.data, node->text.size); break;
  case XT_NODE_BYTES: xt_pickler_put_bytes(p, (const uint8_t *)node->text.data, node->text.size); break;
  case XT_NODE_COMPLEX: xt_pickler_put_complex(p, node->complex.re, node->complex.im); break;
  case XT_NODE_DTYPE: xt_pickler_put_dtype(p, node->dtype); break;
  case XT_NODE_DEVICE: xt_pickler_put_device(p, node->device.type, node->device.type_size, &node->device.index); break;
  case XT_NODE_LIST: write_list(p, f, node); break;
  case XT_NODE_TUPLE: write_tuple(p, f, node); break;
  case XT_NODE_SET:
    xt_pickler_put_global(p, "builtins\nset\n");
    write_list(p, f, node);
    xt_pickler_put_tuple_of(p, 1);
    xt_pickler_put_reduce(p);
    break;
  case XT_NODE_DICT:
    xt_pickler_put_dict(p);
    xt_pickler_put_mark(p);
    write_items(p, f, node);
    xt_pickler_put_set_items(p);
    break;
  case XT_NODE_GLOBAL:
    xt_pickler_put_name(p, node->global.module, node->global.module_size, node->global.name, node->global.name_size);
    break;
  case XT_NODE_OBJECT:
    write_tree(p, f, node->object->callable);
    write_tuple(p, f, node->object->args);
    xt_pickler_put_new(p);
    if (node->object->state) write_tree(p, f, node->object->state);
    if (node->object->state) xt_pickler_put_build(p);
    break;
  case XT_NODE_TENSOR: write_tensor(f, node->tensor); break;
  case XT_NODE_BARE: write_bare(f, node->list.items[0]->tensor); break;
  default: REQUIRE(!"a kind that is not made");
  }
}

/* ---- Comparing ---- */

static void compare_text(const char *a, size_t a_size, const char *b, size_t b_size) {
  REQUIRE(a_size == b_size && !memcmp(a, b, a_size));
}

/* Compares the elements of a view of `memory` with those of a view of what was read. */
static void compare_values(const uint8_t *memory, const int64_t *from, const uint8_t *read, const int64_t *to,
                           const int64_t *sizes, uint32_t ndim, size_t item) {
  int64_t numel = 1;
  for (uint32_t d = 0; d < ndim; d++) numel *= sizes[d];
  for (int64_t i = 0; i < numel; i++) {
    int64_t a = 0, b = 0, rest = i;
    for (uint32_t d = ndim; d-- > 0; rest /= sizes[d]) a += rest % sizes[d] * from[d], b += rest % sizes[d] * to[d];
    REQUIRE(!memcmp(memory + (uint64_t)a * item, read + (uint64_t)b * item, item));
  }
}

static const uint8_t *record_data(const xt_checkpoint *c, uint32_t storage, const uint8_t *file) {
  const xt_record *record = c->records[storage];
  REQUIRE(record && record->data_offset + record->size <= c->file_size);
  return file + record->data_offset;
}

static void compare_strides(const xt_tensor_desc *a, const xt_tensor_desc *b) {
  int64_t step = 1;
  for (uint32_t d = a->ndim; d-- > 0;) {
    REQUIRE(b->strides[d] == (a->conj && a->storage != XT_NO_STORAGE ? step : a->strides[d]));
    step *= a->sizes[d] ? a->sizes[d] : 1;
  }
}

/* Views of the same block share a storage, unless only the memory between their elements is written. */
static void compare_desc(forest *f, const xt_checkpoint *c, const uint8_t *file, const xt_tensor_desc *a,
                         const xt_tensor_desc *b) {
  REQUIRE(a->dtype == b->dtype && a->ndim == b->ndim && a->requires_grad == b->requires_grad && a->bare == b->bare);
  REQUIRE(!memcmp(a->sizes, b->sizes, a->ndim * sizeof *a->sizes));
  compare_strides(a, b);
  if (a->storage == XT_NO_STORAGE) {
    REQUIRE(b->storage == XT_NO_STORAGE);
    return;
  }
  const xt_save_plan *plan = f->draft->plan;
  const xt_save_view *view = &plan->views[a->first_entry - 1];
  const xt_storage *storage = &c->storages.list[b->storage];
  char key[24];
  compare_text(storage->key, storage->key_size, key, xt_decimal(key, view->payload));
  block *from = &f->blocks[a->storage];
  uint32_t *read = &from->read[a->neg];
  bool empty = is_empty(a);                        /* the offset of an empty view does not matter */
  if (!a->conj && !plan->compact && from->bytes) { /* empty memory is not shared */
    REQUIRE((!*read || *read == b->storage + 1) && storage->bytes == from->bytes);
    REQUIRE(b->offset == (empty && !a->neg ? 0 : a->offset));
    *read = b->storage + 1;
  }
  size_t item = xt_dtype_get(a->dtype)->size;
  if (!empty)
    compare_values(from->data + (uint64_t)a->offset * item, a->strides,
                   record_data(c, b->storage, file) + (uint64_t)b->offset * item, b->strides, a->sizes, a->ndim, item);
}

static void compare_trees(forest *f, const xt_checkpoint *c, const uint8_t *file, const xt_node *a, const xt_node *b) {
  REQUIRE(a->kind == b->kind);
  switch (a->kind) {
  case XT_NODE_BOOL: REQUIRE(a->boolean == b->boolean); break;
  case XT_NODE_INT: REQUIRE(a->integer == b->integer); break;
  case XT_NODE_FLOAT: REQUIRE(!memcmp(&a->number, &b->number, sizeof a->number)); break;
  case XT_NODE_COMPLEX: REQUIRE(!memcmp(&a->complex, &b->complex, sizeof a->complex)); break;
  case XT_NODE_BIG:
  case XT_NODE_TEXT:
  case XT_NODE_BYTES: compare_text(a->text.data, a->text.size, b->text.data, b->text.size); break;
  case XT_NODE_DTYPE: REQUIRE(a->dtype == b->dtype); break;
  case XT_NODE_DEVICE:
    compare_text(a->device.type, a->device.type_size, b->device.type, b->device.type_size);
    REQUIRE(a->device.index == b->device.index);
    break;
  case XT_NODE_GLOBAL:
    compare_text(a->global.module, a->global.module_size, b->global.module, b->global.module_size);
    compare_text(a->global.name, a->global.name_size, b->global.name, b->global.name_size);
    break;
  case XT_NODE_OBJECT: REQUIRE(a->object->is_new == b->object->is_new); break;
  case XT_NODE_TENSOR: compare_desc(f, c, file, a->tensor, b->tensor); break;
  default: break;
  }
  REQUIRE(xt_child_count(a) == xt_child_count(b));
  for (size_t i = 0; i < xt_child_count(a); i++)
    compare_trees(f, c, file, xt_child_at(a, i).node, xt_child_at(b, i).node);
}

#endif
