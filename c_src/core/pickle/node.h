/* A Python object as data: what a pickle describes, with nothing of it resolved or run. */
#ifndef XT_PICKLE_NODE_H
#define XT_PICKLE_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/dtype.h"

typedef enum {
  XT_NODE_NONE,
  XT_NODE_BOOL,
  XT_NODE_INT,
  XT_NODE_BIG, /* text: little-endian two's complement */
  XT_NODE_FLOAT,
  XT_NODE_COMPLEX,
  XT_NODE_TEXT,     /* valid UTF-8 */
  XT_NODE_RAW_TEXT, /* a string with lone surrogates, as WTF-8 */
  XT_NODE_BYTES,
  XT_NODE_BYTEARRAY,
  XT_NODE_LIST,
  XT_NODE_TUPLE,
  XT_NODE_SET,
  XT_NODE_FROZENSET,
  XT_NODE_DICT, /* items: key, value, key, value … */
  XT_NODE_GLOBAL,
  XT_NODE_OBJECT,
  XT_NODE_DTYPE,
  XT_NODE_DEVICE,
  XT_NODE_STORAGE,
  XT_NODE_SCALAR,   /* numpy's */
  XT_NODE_SUBCLASS, /* a tensor with a class or attributes of its own; items: what it is made of, class, state */
  XT_NODE_TENSOR
} xt_node_kind;

typedef struct xt_node xt_node;

/* c10::Layout's numbers, which are the same in every LibTorch. */
typedef enum {
  XT_LAYOUT_STRIDED = 0,
  XT_LAYOUT_COO = 1,
  XT_LAYOUT_CSR = 2,
  XT_LAYOUT_CSC = 4,
  XT_LAYOUT_BSR = 5,
  XT_LAYOUT_BSC = 6
} xt_layout;

/* A tensor's place in a storage; sizes, strides and offset count elements.
 *
 * A sparse tensor has no storage of its own but parts: indices and values, or compressed indices, plain indices and
 * values. A quantized one has a storage, and scales and zero points as its parts when they are per channel. */
typedef struct xt_tensor_desc {
  xt_dtype dtype;
  uint32_t storage; /* XT_NO_STORAGE: a meta or sparse tensor */
  uint32_t ndim;
  int64_t offset;
  int64_t *sizes, *strides;
  bool requires_grad, parameter, conj, neg, quantized;
  uint8_t layout; /* xt_layout */
  uint8_t part_count;
  struct xt_tensor_parts *more; /* of sparse and quantized tensors */
} xt_tensor_desc;

typedef struct xt_tensor_parts {
  const xt_tensor_desc *parts[3];
  double scale;
  int64_t zero_point, axis;
} xt_tensor_parts;

enum { XT_NO_STORAGE = UINT32_MAX };

struct xt_node {
  xt_node_kind kind;
  uint32_t walk; /* the walk's own note */
  union {
    bool boolean;
    int64_t integer;
    double number;
    struct {
      double re, im;
    } complex;
    struct {
      const char *data;
      size_t size;
    } text;
    struct {
      xt_node **items;
      size_t count, room;
    } list;
    struct {
      const char *module, *name;
      size_t module_size, name_size;
    } global;
    /* What was called or made, with what, and what was put into it afterwards; NULL where there is none. */
    struct {
      xt_node *callable, *args, *state, *list, *dict;
      bool is_new;
    } * object;
    struct {
      const char *type;
      size_t type_size;
      int64_t index;
    } device; /* index -1: none */
    xt_dtype dtype;
    struct {
      int64_t start, count; /* the elements that a view of it sees; count -1: all */
      uint32_t index;       /* into the storages */
    } storage;
    struct {
      xt_dtype dtype;
      uint8_t bytes[16]; /* little-endian */
    } scalar;
    xt_tensor_desc *tensor;
  };
};

xt_node *xt_node_new(xt_arena *arena, xt_node_kind kind);

/* Appends to a list, tuple, set or dict; false when there is no memory. */
bool xt_node_append(xt_arena *arena, xt_node *list, xt_node *item);

static inline bool xt_node_is_text(const xt_node *node, const char *text, size_t size) {
  if (node->kind != XT_NODE_TEXT || node->text.size != size) return false;
  for (size_t i = 0; i < size; i++)
    if (node->text.data[i] != text[i]) return false;
  return true;
}

bool xt_node_is_global(const xt_node *node, const char *module, const char *name);

#endif
