/* Shared by the rebuild_*.c files. rebuild.c looks at the name of a global and calls the function that rebuilds it.
 *
 * Each of these functions leaves *out NULL if it does not support the arguments; the call then stays an inert object.
 */
#ifndef XT_PICKLE_REBUILD_INTERNAL_H
#define XT_PICKLE_REBUILD_INTERNAL_H

#include <string.h>

#include "core/pickle/rebuild.h"

/* Sets the error "invalid pickle: …" and returns its status. */
xt_status xt_rebuild_corrupt(xt_rebuild *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline xt_status xt_rebuild_no_memory(xt_rebuild *r) {
  return xt_error_set(r->error, XT_STATUS_no_memory, "out of memory while reading the pickle");
}

static inline bool xt_text_equals(const char *text, size_t size, const char *word) {
  return strlen(word) == size && !memcmp(text, word, size);
}

/* Returns item i of a tuple, or NULL if it has fewer. */
static inline xt_node *xt_node_arg(const xt_node *args, size_t i) {
  return i < args->list.count ? args->list.items[i] : NULL;
}

/* Reads an optional boolean: None or a missing node leaves *out as it is. Returns false for any other type. */
static inline bool xt_node_flag(const xt_node *node, bool *out) {
  if (node && node->kind == XT_NODE_BOOL) *out = node->boolean;
  return !node || node->kind == XT_NODE_BOOL || node->kind == XT_NODE_NONE;
}

static inline bool xt_node_number(const xt_node *node, double *out) {
  if (node && node->kind == XT_NODE_FLOAT) *out = node->number;
  else if (node && node->kind == XT_NODE_INT) *out = (double)node->integer;
  else return false;
  return true;
}

/* Reads a tuple of sizes or strides; `what` is "size" or "stride", for errors. */
xt_status xt_rebuild_dims(xt_rebuild *r, const xt_node *node, const char *what, uint32_t *ndim, int64_t **out);

/* Adds a storage whose bytes are in the pickle itself. */
xt_status xt_rebuild_add_inline(xt_rebuild *r, xt_dtype dtype, const char *data, size_t size, bool big_endian,
                                uint32_t *index);

/* rebuild_tensor.c and rebuild_parts.c: torch._utils._rebuild_… */
xt_status xt_rebuild_tensor(xt_rebuild *r, const xt_node *args, int version, xt_node **out);
xt_status xt_rebuild_meta(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_parameter(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_sparse(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_quantized(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_device_tensor(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_from_type(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_tensor_state(xt_rebuild *r, xt_node *target, xt_node *state, bool *done);

/* rebuild_python.c */
xt_status xt_rebuild_latin1(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_bytearray(xt_rebuild *r, const xt_node *args, xt_node_kind kind, xt_node **out);
xt_status xt_rebuild_complex(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_items(xt_rebuild *r, const xt_node *args, xt_node_kind kind, xt_node **out);
xt_status xt_rebuild_dict(xt_rebuild *r, const xt_node *args, size_t data, xt_node **out);
xt_status xt_rebuild_device(xt_rebuild *r, const xt_node *args, xt_node **out);

/* rebuild_numpy.c */
bool xt_rebuild_is_numpy(const xt_node *global);
xt_status xt_rebuild_numpy(xt_rebuild *r, const xt_node *callable, const xt_node *args, xt_node **out);
xt_status xt_rebuild_numpy_state(xt_rebuild *r, xt_node *target, const xt_node *state, bool *done);

/* rebuild.c: whether a NULL-terminated list contains the text */
bool xt_rebuild_in_list(const char *text, size_t size, const char *const *list);

/* weights_only.c: whether torch's weights_only unpickler allows a global */
bool xt_rebuild_weights_only(const xt_node *global);

/* rebuild_nested.c: a whole checkpoint inside a pickle */
xt_status xt_rebuild_nested(xt_rebuild *r, const xt_node *args, xt_node **out);

#endif
