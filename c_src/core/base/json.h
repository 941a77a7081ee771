/* JSON, pulled value by value: strict, without recursion, and without an allocation but for strings that are escaped.
 *
 *   xt_json_object(j)          enters an object;  while (xt_json_key(j, &text)) { read the value }
 *   xt_json_array(j)           enters an array;   while (xt_json_item(j)) { read the value }
 *   xt_json_text / _integer    reads a value of that kind
 *
 * After the first error every call answers false; xt_json_end tells it. Refused: what RFC 8259 does not have, invalid
 * UTF-8 and lone surrogates, integers past 64 bits, nesting deeper than XT_JSON_DEPTH. Whether a key comes twice is for
 * the caller to know, who has a table of them. */
#ifndef XT_BASE_JSON_H
#define XT_BASE_JSON_H

#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/pickle/node.h"

enum { XT_JSON_DEPTH = 64 };

typedef struct {
  const char *data;
  size_t size;
} xt_json_string;

typedef struct {
  const uint8_t *data;
  size_t size, at;
  xt_arena *arena; /* strings with escapes are unescaped into it */
  int depth;
  bool first[XT_JSON_DEPTH + 1]; /* no member of this object or array was read yet */
  char closes[XT_JSON_DEPTH + 1];
  const char *wrong; /* what the first error was */
  bool no_memory;
} xt_json;

void xt_json_begin(xt_json *json, const uint8_t *data, size_t size, xt_arena *arena);

/* The next byte that is no white space, 0 at the end: '{' '[' '"' 't' 'f' 'n' '-' or a digit tell the value's kind. */
char xt_json_peek(xt_json *json);

bool xt_json_object(xt_json *json);
bool xt_json_key(xt_json *json, xt_json_string *key);
bool xt_json_array(xt_json *json);
bool xt_json_item(xt_json *json);
bool xt_json_text(xt_json *json, xt_json_string *text);
bool xt_json_integer(xt_json *json, int64_t *value);

/* Marks the text as wrong for a reason of the caller's; returns false. */
bool xt_json_fail(xt_json *json, const char *why);

/* Is everything read, and nothing wrong? White space may follow. The error's offset counts from data. */
xt_status xt_json_end(xt_json *json, xt_error *error);

/* The whole text as a tree, for those who have no shape in mind; duplicate keys are refused. */
xt_status xt_json_read(const uint8_t *data, size_t size, xt_arena *arena, xt_node **root, xt_error *error);

#endif
