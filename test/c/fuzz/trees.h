/* Random object trees: made from the input, written with the pickler, and compared with what is read back. */
#ifndef XT_FUZZ_TREES_H
#define XT_FUZZ_TREES_H

#include "containers.h"
#include "reading.h"

enum { MAX_PAYLOADS = 24, MAX_TREE = 300, MAX_TREE_DEPTH = 8 };

typedef struct {
  choices *in;
  xt_arena *arena;
  int nodes;
  xt_payload payloads[MAX_PAYLOADS];
  uint8_t *contents[MAX_PAYLOADS];
  size_t count;
} forest;

/* ---- Making ---- */

static size_t put_utf8(char *to, uint32_t c) {
  if (c < 0x80) return to[0] = (char)c, 1;
  size_t more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  to[0] = (char)((0xFF00u >> (more + 1) & 0xFF) | c >> (6 * more));
  for (size_t i = 1; i <= more; i++) to[i] = (char)(0x80 | (c >> (6 * (more - i)) & 0x3F));
  return more + 1;
}

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
    *size += put_utf8(text + *size, c);
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

static xt_dtype choose_dtype(choices *in, bool storage_class) {
  xt_dtype dtype = (xt_dtype)(choose_byte(in) % XT_DTYPE_COUNT);
  return storage_class && !xt_pickler_storage_class(dtype) ? XT_float32 : dtype;
}

static size_t make_payload(forest *f, xt_dtype dtype, int64_t numel) {
  size_t i = f->count++;
  xt_payload *payload = &f->payloads[i];
  uint64_t bytes = (uint64_t)numel * xt_dtype_get(dtype)->size;
  *payload = (xt_payload){"", dtype, numel, bytes, NULL};
  snprintf(payload->key, sizeof payload->key, "%zu", i);
  f->contents[i] = malloc(bytes + 1);
  fill_content(payload->key, strlen(payload->key), f->contents[i], bytes);
  payload->data = f->contents[i];
  return i;
}

/* A view of a new storage or of one that another tensor uses. */
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
  last += t->offset + 1;
  size_t i = choose_below(in, f->count + 1);
  bool fits = i < f->count && f->payloads[i].numel >= last;
  if (!fits && f->count == MAX_PAYLOADS) return node->kind = XT_NODE_NONE, node;
  if (!fits) {
    xt_dtype dtype = choose_dtype(in, true);
    int64_t item = (int64_t)xt_dtype_get(dtype)->size;
    bool large = how >> 5 == 7 && choose_byte(in) == 1; /* the writer does not copy payloads of more than 64 KiB */
    i = make_payload(f, dtype, last + (large ? 100000 * (1 + choose_byte(in) % 3) / item : how >> 6));
  }
  t->storage = (uint32_t)i;
  t->dtype = f->payloads[i].dtype;
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
  static const xt_node_kind leaves[] = {XT_NODE_NONE,  XT_NODE_BOOL,   XT_NODE_INT,    XT_NODE_BIG,
                                        XT_NODE_FLOAT, XT_NODE_TEXT,   XT_NODE_BYTES,  XT_NODE_COMPLEX,
                                        XT_NODE_DTYPE, XT_NODE_DEVICE, XT_NODE_TENSOR, XT_NODE_TENSOR};
  static const xt_node_kind branches[] = {XT_NODE_LIST, XT_NODE_TUPLE, XT_NODE_DICT, XT_NODE_SET, XT_NODE_OBJECT};
  uint8_t kind = choose_byte(f->in);
  bool leaf = depth >= MAX_TREE_DEPTH || ++f->nodes > MAX_TREE || kind % 2;
  xt_node *node = xt_node_new(f->arena, leaf ? leaves[kind / 2 % 12] : branches[kind / 2 % 5]);
  switch (node->kind) {
  case XT_NODE_BOOL: node->boolean = choose_byte(f->in) % 2; break;
  case XT_NODE_INT:
  case XT_NODE_FLOAT:
  case XT_NODE_COMPLEX: return make_number(f, node);
  case XT_NODE_BIG: return make_big(f, node);
  case XT_NODE_TEXT:
  case XT_NODE_BYTES: choose_text(f->in, f->arena, &node->text.data, &node->text.size); break;
  case XT_NODE_DTYPE: node->dtype = choose_dtype(f->in, false); break;
  case XT_NODE_DEVICE:
    choose_text(f->in, f->arena, &node->device.type, &node->device.type_size);
    node->device.index = choose_byte(f->in);
    break;
  case XT_NODE_TENSOR: return make_tensor(f);
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
  for (size_t i = 0; i < f->count; i++) free(f->contents[i]);
}

/* ---- Writing ---- */

static void write_tree(xt_pickler *p, const forest *f, const xt_node *node);

static void write_items(xt_pickler *p, const forest *f, const xt_node *node) {
  for (size_t i = 0; i < node->list.count; i++) write_tree(p, f, node->list.items[i]);
}

static void write_tuple(xt_pickler *p, const forest *f, const xt_node *node) {
  if (node->list.count > 3) xt_pickler_put_mark(p);
  write_items(p, f, node);
  if (node->list.count > 3) xt_pickler_put_tuple(p);
  else xt_pickler_put_tuple_of(p, (int)node->list.count);
}

static void write_list(xt_pickler *p, const forest *f, const xt_node *node) {
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

static void write_tensor(xt_pickler *p, const forest *f, const xt_tensor_desc *t) {
  const xt_payload *payload = &f->payloads[t->storage];
  put_tensor(p, &(tensor_spec){payload->key, payload->dtype, payload->numel, t->offset, (int)t->ndim, t->sizes,
                               t->strides, t->requires_grad});
}

static const char *dtype_global(xt_dtype dtype) {
  static char names[XT_DTYPE_COUNT][64];
  snprintf(names[dtype], sizeof names[dtype], "torch\n%s\n", xt_dtype_get(dtype)->name);
  return names[dtype];
}

static void write_tree(xt_pickler *p, const forest *f, const xt_node *node) {
  switch (node->kind) {
  case XT_NODE_NONE: xt_pickler_put_none(p); break;
  case XT_NODE_BOOL: xt_pickler_put_bool(p, node->boolean); break;
  case XT_NODE_INT: xt_pickler_put_int(p, node->integer); break;
  case XT_NODE_BIG: write_big(p, node); break;
  case XT_NODE_FLOAT: xt_pickler_put_float(p, node->number); break;
  case XT_NODE_TEXT: xt_pickler_put_text(p, node->text.data, node->text.size); break;
  case XT_NODE_BYTES: xt_pickler_put_bytes(p, (const uint8_t *)node->text.data, node->text.size); break;
  case XT_NODE_COMPLEX:
    xt_pickler_put_global(p, "builtins\ncomplex\n");
    xt_pickler_put_float(p, node->complex.re);
    xt_pickler_put_float(p, node->complex.im);
    xt_pickler_put_tuple_of(p, 2);
    xt_pickler_put_reduce(p);
    break;
  case XT_NODE_DTYPE: xt_pickler_put_global(p, dtype_global(node->dtype)); break;
  case XT_NODE_DEVICE:
    xt_pickler_put_global(p, "torch\ndevice\n");
    xt_pickler_put_text(p, node->device.type, node->device.type_size);
    xt_pickler_put_int(p, node->device.index);
    xt_pickler_put_tuple_of(p, 2);
    xt_pickler_put_reduce(p);
    break;
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
  case XT_NODE_TENSOR: write_tensor(p, f, node->tensor); break;
  default: REQUIRE(!"a kind that is not made");
  }
}

/* ---- Comparing ---- */

static void compare_text(const char *a, size_t a_size, const char *b, size_t b_size) {
  REQUIRE(a_size == b_size && !memcmp(a, b, a_size));
}

static void compare_desc(const forest *f, const xt_checkpoint *c, const xt_tensor_desc *a, const xt_tensor_desc *b) {
  const xt_storage *storage = &c->storages.list[b->storage];
  const xt_payload *payload = &f->payloads[a->storage];
  REQUIRE(a->dtype == b->dtype && a->ndim == b->ndim && a->offset == b->offset && a->requires_grad == b->requires_grad);
  REQUIRE(!memcmp(a->sizes, b->sizes, a->ndim * sizeof *a->sizes));
  REQUIRE(!memcmp(a->strides, b->strides, a->ndim * sizeof *a->strides));
  REQUIRE(storage->bytes == payload->bytes && storage->numel == payload->numel);
  compare_text(storage->key, storage->key_size, payload->key, strlen(payload->key));
}

static void compare_trees(const forest *f, const xt_checkpoint *c, const xt_node *a, const xt_node *b) {
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
  case XT_NODE_TENSOR: compare_desc(f, c, a->tensor, b->tensor); break;
  default: break;
  }
  REQUIRE(xt_child_count(a) == xt_child_count(b));
  for (size_t i = 0; i < xt_child_count(a); i++) compare_trees(f, c, xt_child_at(a, i).node, xt_child_at(b, i).node);
}

#endif
