#include "core/checkpoint/weight.h"

/* Smaller integers need no memory of their own. */
#define SMALL_INTEGER ((int64_t)1 << 59)

static uint64_t text_weight(size_t size) { return 24 + (uint64_t)size; }

static uint64_t term_bytes(const xt_node *node) {
  switch ((xt_node_kind)node->kind) {
  case XT_NODE_NONE:
  case XT_NODE_BOOL: return 0;
  case XT_NODE_INT: return node->integer >= -SMALL_INTEGER && node->integer < SMALL_INTEGER ? 0 : 16;
  case XT_NODE_FLOAT: return 16;
  case XT_NODE_BIG: return 16 + (uint64_t)node->text.size;
  case XT_NODE_TEXT: return text_weight(node->text.size);
  case XT_NODE_RAW_TEXT:
  case XT_NODE_BYTES:
  case XT_NODE_BYTEARRAY: return 56 + text_weight(node->text.size);
  /* the items, and their places on the stack of the function that makes the term */
  case XT_NODE_LIST: return 24 * (uint64_t)node->list.count;
  case XT_NODE_TUPLE: return 8 + 16 * (uint64_t)node->list.count;
  case XT_NODE_SET:
  case XT_NODE_FROZENSET: return 96 + 56 * (uint64_t)node->list.count;
  case XT_NODE_DICT: return 48 + 28 * (uint64_t)node->list.count;
  case XT_NODE_GLOBAL: return 72 + text_weight(node->global.module_size) + text_weight(node->global.name_size);
  case XT_NODE_OBJECT: return 160;
  case XT_NODE_DEVICE: return 96 + text_weight(node->device.type_size);
  case XT_NODE_REF: return 128 + node->ref.weight;
  default: return 128;
  }
}

/* Twice, because the garbage collector copies terms while the old ones exist. */
uint64_t xt_weight_of(const xt_node *node) { return 2 * term_bytes(node); }

/* Erlang keeps the bytes of long binaries outside of the heap. */
static uint64_t outside(const xt_node *node) {
  enum { MAX_ON_HEAP = 64 };
  bool is_text = node->kind == XT_NODE_TEXT || node->kind == XT_NODE_RAW_TEXT || node->kind == XT_NODE_BYTES ||
                 node->kind == XT_NODE_BYTEARRAY;
  return is_text && node->text.size > MAX_ON_HEAP ? node->text.size : 0;
}

uint64_t xt_weight_on_heap(const xt_node *node) {
  enum { TENSOR = 112 /* the struct and the reference to the resource */ };
  if (node->kind == XT_NODE_TENSOR) return TENSOR + 8 * (uint64_t)node->tensor->ndim;
  return term_bytes(node) - outside(node);
}

uint64_t xt_weight_of_entry(const xt_tensor_desc *tensor) {
  return 800 + 40 * (uint64_t)tensor->ndim + 400 * (uint64_t)tensor->part_count;
}
