/* What the files of the meaning share: meaning.c decides by name, the others make what was named.
 *
 * Each maker leaves *out NULL for what it does not understand: it stays an inert object. */
#ifndef XT_PICKLE_REBUILD_INTERNAL_H
#define XT_PICKLE_REBUILD_INTERNAL_H

#include <string.h>

#include "core/pickle/rebuild.h"

static inline xt_status xt_rebuild_corrupt(xt_rebuild *r, const char *what) {
  return xt_error_at(r->error, XT_STATUS_corrupt, r->at, "the pickle is broken: %s", what);
}

static inline xt_status xt_rebuild_no_memory(xt_rebuild *r) {
  return xt_error_set(r->error, XT_STATUS_no_memory, "no memory for the pickle's objects");
}

static inline bool xt_text_equals(const char *text, size_t size, const char *word) {
  return strlen(word) == size && !memcmp(text, word, size);
}

static inline xt_node *xt_node_arg(const xt_node *args, size_t i) {
  return i < args->list.count ? args->list.items[i] : NULL;
}

/* True or False into *out; None and a missing one leave it. */
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

xt_node *xt_rebuild_new_tensor(xt_rebuild *r);

/* A tuple of sizes or strides. */
xt_status xt_rebuild_dims(xt_rebuild *r, const xt_node *node, const char *what, uint32_t *ndim, int64_t **out);

/* No tensor sees outside its storage, or past element `end` of it unless that is -1; and none claims more logical bytes
 * than the limit. */
xt_status xt_rebuild_check_view(xt_rebuild *r, const xt_tensor_desc *tensor, int64_t end);

/* A storage of bytes inside the pickle. */
xt_status xt_rebuild_inline(xt_rebuild *r, xt_dtype dtype, const char *data, size_t size, bool big_endian,
                            uint32_t *index);

/* meaning_tensor.c: torch._utils._rebuild_… */
xt_status xt_rebuild_tensor(xt_rebuild *r, const xt_node *args, int version, xt_node **out);
xt_status xt_rebuild_meta(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_parameter(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_sparse(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_quantized(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_device_tensor(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_typed(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_tensor_state(xt_rebuild *r, xt_node *target, xt_node *state, bool *done);

/* meaning_python.c */
xt_status xt_rebuild_latin1(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_bytearray(xt_rebuild *r, const xt_node *args, xt_node_kind kind, xt_node **out);
xt_status xt_rebuild_complex(xt_rebuild *r, const xt_node *args, xt_node **out);
xt_status xt_rebuild_items(xt_rebuild *r, const xt_node *args, xt_node_kind kind, xt_node **out);
xt_status xt_rebuild_dict(xt_rebuild *r, const xt_node *args, size_t data, xt_node **out);
xt_status xt_rebuild_device(xt_rebuild *r, const xt_node *args, xt_node **out);

/* meaning_numpy.c */
bool xt_rebuild_is_numpy(const xt_node *global);
xt_status xt_rebuild_numpy(xt_rebuild *r, const xt_node *callable, const xt_node *args, xt_node **out);
xt_status xt_rebuild_numpy_state(xt_rebuild *r, xt_node *target, const xt_node *state, bool *done);

/* meaning_bytes.c: a whole save inside a pickle */
xt_status xt_rebuild_nested(xt_rebuild *r, const xt_node *args, xt_node **out);

#endif
