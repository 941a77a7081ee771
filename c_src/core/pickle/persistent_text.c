#include "core/pickle/persistent_text.h"

#include <string.h>

enum { MAX_NUMBER = 18 }; /* digits */

typedef struct {
  xt_arena *arena;
  const char *at, *end;
  bool no_memory;
} parser;

static xt_node *new_node(parser *p, xt_node_kind kind) {
  xt_node *node = xt_node_new(p->arena, kind);
  p->no_memory |= !node;
  return node;
}

static bool skip(parser *p, const char *text) {
  size_t size = strlen(text);
  if ((size_t)(p->end - p->at) < size || memcmp(p->at, text, size)) return false;
  p->at += size;
  return true;
}

/* Reads up to the quote that ends a string. Strings with escapes do not occur. */
static bool read_quoted(parser *p, const char **text, size_t *size) {
  if (!skip(p, "'")) return false;
  const char *end = memchr(p->at, '\'', (size_t)(p->end - p->at));
  if (!end || memchr(p->at, '\\', (size_t)(end - p->at))) return false;
  *text = p->at;
  *size = (size_t)(end - p->at);
  p->at = end + 1;
  return true;
}

static xt_node *read_text(parser *p) {
  xt_node *node = new_node(p, XT_NODE_TEXT);
  return node && read_quoted(p, &node->text.data, &node->text.size) ? node : NULL;
}

/* <class 'torch.FloatStorage'> */
static xt_node *read_class(parser *p) {
  const char *text, *dot;
  size_t size;
  xt_node *node = new_node(p, XT_NODE_GLOBAL);
  if (!node || !skip(p, "<class ") || !read_quoted(p, &text, &size) || !skip(p, ">")) return NULL;
  for (dot = text + size; dot > text && *dot != '.'; dot--) continue;
  if (dot == text || size > UINT32_MAX) return NULL;
  node->global.module = text;
  node->global.module_size = (uint32_t)(dot - text);
  node->global.name = dot + 1;
  node->global.name_size = (uint32_t)(text + size - dot - 1);
  return node;
}

static xt_node *read_number(parser *p) {
  const char *start = p->at;
  xt_node *node = new_node(p, XT_NODE_INT);
  while (node && p->at < p->end && *p->at >= '0' && *p->at <= '9' && p->at - start < MAX_NUMBER)
    node->integer = node->integer * 10 + (*p->at++ - '0');
  return p->at > start ? node : NULL;
}

static xt_node *read_item(parser *p) {
  if (p->at == p->end) return NULL;
  if (*p->at == '\'') return read_text(p);
  if (*p->at == '<') return read_class(p);
  if (*p->at == 'N') return skip(p, "None") ? new_node(p, XT_NODE_NONE) : NULL;
  return read_number(p);
}

/* Reads a tuple. Its last item may be a tuple, which has none. */
static xt_node *read_tuple(parser *p, bool inner) {
  xt_node *tuple = new_node(p, XT_NODE_TUPLE);
  if (!tuple || !skip(p, "(")) return NULL;
  do {
    xt_node *item = !inner && p->at < p->end && *p->at == '(' ? read_tuple(p, true) : read_item(p);
    if (!item) return NULL;
    p->no_memory = !xt_node_append(p->arena, tuple, item);
    if (p->no_memory) return NULL;
  } while (skip(p, ", "));
  return skip(p, ")") ? tuple : NULL;
}

xt_status xt_persistent_text_parse(xt_arena *arena, const char *text, size_t size, xt_node **tuple) {
  parser p = {arena, text, text + size, false};
  xt_node *parsed = read_tuple(&p, false);
  *tuple = p.at == p.end ? parsed : NULL;
  return p.no_memory ? XT_STATUS_no_memory : XT_STATUS_ok;
}
