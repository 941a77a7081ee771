/* The node tree: a Python object as data. Nothing in it has been imported or called. */
#ifndef XT_PICKLE_NODE_H
#define XT_PICKLE_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/tensor/desc.h"

typedef enum {
  XT_NODE_NONE,
  XT_NODE_BOOL,
  XT_NODE_INT,
  XT_NODE_BIG, /* an integer of more than 64 bits; text: little-endian two's complement */
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
  XT_NODE_BARE,     /* a storage outside a tensor; made while the index is built; items: a tensor of all its elements */
  XT_NODE_SCALAR,   /* a NumPy scalar */
  XT_NODE_SUBCLASS, /* a tensor with a class or attributes of its own; items: tensor or object, class, state */
  XT_NODE_TENSOR,
  XT_NODE_REF /* refers to a container in another place of the tree; made while the index is built */
} xt_node_kind;

typedef struct xt_node xt_node;

struct xt_node {
  uint8_t kind; /* xt_node_kind */
  /* set while the index is built */
  bool visited : 1;
  bool on_path : 1; /* the walk is inside this container */
  bool open : 1;    /* a reference below this container points to a place outside of it */
  bool has_tensors; /* a tensor is below this container, or is it */
  uint32_t shared;  /* a number from 1 on if the tree contains the node more than once, else 0 */
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
      uint32_t module_size, name_size;
    } global;
    /* The callable or class, its arguments, and the state and items set afterwards (NULL if there are none). */
    struct {
      xt_node *callable, *args, *state, *list, *dict;
      bool is_new; /* made by cls.__new__(cls, *args), not by a call */
    } * object;
    struct {
      const char *type;
      size_t type_size;
      int64_t index;
    } device; /* index: -1 if there is none */
    xt_dtype dtype;
    xt_storage_view storage;
    struct {
      xt_dtype dtype;
      uint8_t bytes[16]; /* little-endian */
    } scalar;
    xt_tensor_desc *tensor;
    /* The place of the target in the tree. The same place as seen from the reference: `up` containers up, then along
     * the last `down` steps of the place. */
    struct {
      const struct xt_path *place;
      uint32_t up, down;
      uint64_t weight; /* of the terms of the place */
    } ref;
  };
};

/* Returns a zeroed node of the given kind, or NULL if there is not enough memory. A number must not become a node of
 * another kind, and must not be copied as a whole. */
xt_node *xt_node_new(xt_arena *arena, xt_node_kind kind);

/* Returns a tensor node with a zeroed description, or NULL if there is not enough memory. */
xt_node *xt_node_new_tensor(xt_arena *arena);

/* Returns a text node. The text is not copied. Returns NULL if there is not enough memory. */
xt_node *xt_node_new_text(xt_arena *arena, const char *text, size_t size);

/* Appends an item to a list, tuple, set or dict. Returns false if there is not enough memory. */
bool xt_node_append(xt_arena *arena, xt_node *list, xt_node *item);

static inline bool xt_node_is_text(const xt_node *node, const char *text, size_t size) {
  if (node->kind != XT_NODE_TEXT || node->text.size != size) return false;
  for (size_t i = 0; i < size; i++)
    if (node->text.data[i] != text[i]) return false;
  return true;
}

bool xt_node_is_global(const xt_node *node, const char *module, const char *name);

#endif
