/* JSON texts as node trees. */
#ifndef XT_FORMATS_NODE_JSON_H
#define XT_FORMATS_NODE_JSON_H

#include "core/base/error.h"
#include "core/pickle/node.h"

/* Reads a JSON text into a tree of dicts, lists, texts, integers, floats, booleans and None. Duplicate keys are an
 * error. Strings without escapes point into data, which must outlive the tree. The error's offset counts from data. */
xt_status xt_node_from_json(const uint8_t *data, size_t size, xt_arena *arena, xt_node **root, xt_error *error);

#endif
