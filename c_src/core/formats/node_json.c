#include "core/formats/node_json.h"

#include "core/formats/json.h"
#include "core/memory/table.h"

static xt_node *read_scalar(xt_json *j) {
  char kind = xt_json_peek(j);
  xt_node *node = xt_node_new(j->arena, XT_NODE_NONE);
  xt_json_string text;
  if (!node) {
    xt_json_no_memory(j);
  } else if (kind == '"') {
    node->kind = XT_NODE_TEXT;
    if (xt_json_text(j, &text)) node->text.data = text.data, node->text.size = text.size;
  } else if (kind == 't' || kind == 'f') {
    node->kind = XT_NODE_BOOL;
    node->boolean = kind == 't';
    xt_json_word(j, kind == 't' ? "true" : "false");
  } else if (kind == 'n') {
    xt_json_word(j, "null");
  } else if (kind == '-' || (kind >= '0' && kind <= '9')) {
    size_t end = j->at + 1;
    while (end < j->size && j->data[end] >= '0' && j->data[end] <= '9') end++;
    bool fraction = end < j->size && (j->data[end] == '.' || j->data[end] == 'e' || j->data[end] == 'E');
    node->kind = fraction ? XT_NODE_FLOAT : XT_NODE_INT;
    if (fraction) xt_json_double(j, &node->number);
    else xt_json_integer(j, &node->integer);
  } else {
    xt_json_fail(j, "expected a value");
  }
  return j->wrong ? NULL : node;
}

/* An object or array that is being read. */
typedef struct {
  xt_node *node;
  xt_table keys; /* of an object */
} level;

static bool append(xt_json *j, xt_node *list, xt_node *item) {
  return xt_node_append(j->arena, list, item) || xt_json_no_memory(j);
}

static bool append_key(xt_json *j, level *in) {
  xt_json_string text;
  bool is_new = true;
  if (!xt_json_key(j, &text)) return false;
  xt_node *key = xt_node_new(j->arena, XT_NODE_TEXT);
  if (!key || !xt_table_put(&in->keys, text.data, text.size, &is_new)) return xt_json_no_memory(j);
  if (!is_new) return xt_json_fail(j, "duplicate key in an object");
  key->text.data = text.data, key->text.size = text.size;
  return append(j, in->node, key);
}

/* Reads a scalar or enters an object or array, and appends it to the container it is in. */
static xt_node *read_value(xt_json *j, level *levels, int *depth) {
  char kind = xt_json_peek(j);
  bool container = kind == '{' || kind == '[';
  if (container && !(kind == '{' ? xt_json_object(j) : xt_json_array(j))) return NULL;
  xt_node *node = container ? xt_node_new(j->arena, kind == '{' ? XT_NODE_DICT : XT_NODE_LIST) : read_scalar(j);
  if (container && !node) xt_json_no_memory(j);
  if (!node || (*depth && !append(j, levels[*depth].node, node))) return NULL;
  if (container) levels[++*depth] = (level){node, {0}};
  return node;
}

xt_status xt_node_from_json(const uint8_t *data, size_t size, xt_arena *arena, xt_node **root, xt_error *error) {
  xt_json j;
  level levels[XT_JSON_DEPTH + 1];
  int depth = 0;
  xt_json_begin(&j, data, size, arena);
  *root = read_value(&j, levels, &depth);
  while (depth && !j.wrong) {
    bool more = levels[depth].node->kind == XT_NODE_DICT ? append_key(&j, &levels[depth]) : xt_json_item(&j);
    if (more) read_value(&j, levels, &depth);
    else if (!j.wrong) xt_table_free(&levels[depth--].keys);
  }
  while (depth) xt_table_free(&levels[depth--].keys);
  return xt_json_end(&j, error);
}
