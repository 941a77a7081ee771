/* Object trees as text in the style of Python's repr, so that a test can compare a whole tree with one string:
 *
 *   {'a': [1, None], 'w': tensor(float32, size (2, 3), stride (3, 1), storage 0 + 0)}
 */
#ifndef XT_TEST_NODE_TEXT_H
#define XT_TEST_NODE_TEXT_H

#include <inttypes.h>
#include <string.h>

#include "check.h"
#include "core/pickle/node.h"

static inline void print_node(FILE *out, const xt_node *node);

static inline void print_bytes(FILE *out, const char *prefix, const char *data, size_t size) {
  fprintf(out, "%s'", prefix);
  for (size_t i = 0; i < size; i++) {
    unsigned char c = (unsigned char)data[i];
    if (c < 0x20 || c >= 0x7f || c == '\'' || c == '\\') fprintf(out, "\\x%02x", c);
    else fputc(c, out);
  }
  fputc('\'', out);
}

static inline void print_items(FILE *out, const char *open, const xt_node *node, const char *close) {
  fputs(open, out);
  for (size_t i = 0; i < node->list.count; i++) {
    bool value = node->kind == XT_NODE_DICT && i % 2;
    fputs(i == 0 ? "" : value ? ": " : ", ", out);
    print_node(out, node->list.items[i]);
  }
  fputs(close, out);
}

static inline void print_part(FILE *out, const char *name, const xt_node *part) {
  if (!part) return;
  fprintf(out, " %s ", name);
  print_node(out, part);
}

static inline void print_dims(FILE *out, const char *name, const int64_t *dims, uint32_t ndim) {
  fprintf(out, ", %s (", name);
  for (uint32_t i = 0; i < ndim; i++) fprintf(out, "%s%" PRId64, i ? ", " : "", dims[i]);
  fputc(')', out);
}

static inline void print_tensor(FILE *out, const xt_tensor_desc *t) {
  fprintf(out, "tensor(%s", xt_dtype_get(t->dtype)->name);
  print_dims(out, "size", t->sizes, t->ndim);
  print_dims(out, "stride", t->strides, t->ndim);
  if (t->storage != XT_NO_STORAGE) fprintf(out, ", storage %" PRIu32 " + %" PRId64, t->storage, t->offset);
  if (t->requires_grad) fputs(", requires_grad", out);
  if (t->parameter) fputs(", parameter", out);
  fputc(')', out);
}

static inline void print_node(FILE *out, const xt_node *node) {
  switch (node->kind) {
  case XT_NODE_NONE: fputs("None", out); break;
  case XT_NODE_BOOL: fputs(node->boolean ? "True" : "False", out); break;
  case XT_NODE_INT: fprintf(out, "%" PRId64, node->integer); break;
  case XT_NODE_BIG: print_bytes(out, "int", node->text.data, node->text.size); break;
  case XT_NODE_FLOAT: fprintf(out, "%.17gf", node->number); break;
  case XT_NODE_COMPLEX: fprintf(out, "complex(%g, %g)", node->complex.re, node->complex.im); break;
  case XT_NODE_TEXT: print_bytes(out, "", node->text.data, node->text.size); break;
  case XT_NODE_RAW_TEXT: print_bytes(out, "wtf8", node->text.data, node->text.size); break;
  case XT_NODE_BYTES: print_bytes(out, "b", node->text.data, node->text.size); break;
  case XT_NODE_BYTEARRAY: print_bytes(out, "bytearray", node->text.data, node->text.size); break;
  case XT_NODE_LIST: print_items(out, "[", node, "]"); break;
  case XT_NODE_TUPLE: print_items(out, "(", node, ")"); break;
  case XT_NODE_SET: print_items(out, "set(", node, ")"); break;
  case XT_NODE_FROZENSET: print_items(out, "frozenset(", node, ")"); break;
  case XT_NODE_DICT: print_items(out, "{", node, "}"); break;
  case XT_NODE_GLOBAL:
    fprintf(out, "%.*s.%.*s", (int)node->global.module_size, node->global.module, (int)node->global.name_size,
            node->global.name);
    break;
  case XT_NODE_OBJECT:
    fputs(node->object->is_new ? "<new " : "<call ", out);
    print_node(out, node->object->callable);
    print_part(out, "args", node->object->args);
    print_part(out, "state", node->object->state);
    print_part(out, "list", node->object->list);
    print_part(out, "dict", node->object->dict);
    fputc('>', out);
    break;
  case XT_NODE_DTYPE: fprintf(out, "dtype(%s)", xt_dtype_get(node->dtype)->name); break;
  case XT_NODE_DEVICE:
    fprintf(out, "device(%.*s, %" PRId64 ")", (int)node->device.type_size, node->device.type, node->device.index);
    break;
  case XT_NODE_STORAGE: fprintf(out, "storage(%" PRIu32 ")", node->storage.index); break;
  case XT_NODE_SCALAR: fprintf(out, "scalar(%s)", xt_dtype_get(node->scalar.dtype)->name); break;
  case XT_NODE_BARE: print_items(out, "bare(", node, ")"); break;
  case XT_NODE_SUBCLASS: print_items(out, "subclass(", node, ")"); break;
  case XT_NODE_TENSOR: print_tensor(out, node->tensor); break;
  }
}

/* Prints both texts when they differ. */
static inline bool node_reads(const xt_node *node, const char *expected) {
  char *text = NULL;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  CHECK(out);
  print_node(out, node);
  fclose(out);
  bool equal = !strcmp(text, expected);
  if (!equal) fprintf(stderr, "expected: %s\nfound:    %s\n", expected, text);
  free(text);
  return equal;
}

#endif
