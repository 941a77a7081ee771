/* A strict JSON pull parser. It does not recurse, and allocates only for strings that contain escapes.
 *
 *   xt_json_object(j)          enters an object;  while (xt_json_key(j, &text)) { read the value }
 *   xt_json_array(j)           enters an array;   while (xt_json_item(j)) { read the value }
 *   xt_json_text, _integer, …  reads a value of that kind
 *
 * After the first error every call returns false, and xt_json_end returns the error. Besides anything that RFC 8259
 * does not allow, the parser refuses invalid UTF-8, lone surrogates, integers that do not fit in 64 bits and nesting
 * deeper than XT_JSON_DEPTH. It does not detect duplicate keys; that is left to the caller. */
#ifndef XT_FORMATS_JSON_H
#define XT_FORMATS_JSON_H

#include <stdint.h>

#include "core/base/buffer.h"
#include "core/base/error.h"
#include "core/memory/arena.h"

enum { XT_JSON_DEPTH = 64 };

typedef struct {
  const char *data;
  size_t size;
} xt_json_string;

typedef struct {
  const uint8_t *data;
  size_t size, at;
  xt_arena *arena; /* holds the strings that contained escapes */
  int depth;
  bool first[XT_JSON_DEPTH + 1];  /* per level: no member of the object or array was read yet */
  char closes[XT_JSON_DEPTH + 1]; /* per level: '}' or ']' */
  const char *wrong;              /* reason of the first error, or NULL */
  bool no_memory;
} xt_json;

void xt_json_begin(xt_json *json, const uint8_t *data, size_t size, xt_arena *arena);

/* Skips white space and returns the next byte without reading it, or 0 at the end or after an error. The byte tells the
 * kind of the next value: '{', '[', '"', 't', 'f', 'n', '-' or a digit. */
char xt_json_peek(xt_json *json);

/* See above. The functions that read a member return false at the end of the object or array. */
bool xt_json_object(xt_json *json);
bool xt_json_key(xt_json *json, xt_json_string *key);
bool xt_json_array(xt_json *json);
bool xt_json_item(xt_json *json);
bool xt_json_text(xt_json *json, xt_json_string *text);
bool xt_json_integer(xt_json *json, int64_t *value);
bool xt_json_double(xt_json *json, double *value);
bool xt_json_word(xt_json *json, const char *word); /* true, false or null */

/* Sets the error unless there already is one, for checks of the caller. `why` must be static. Returns false. */
bool xt_json_fail(xt_json *json, const char *why);

/* Same if the caller is out of memory; xt_json_end then returns XT_STATUS_no_memory. */
bool xt_json_no_memory(xt_json *json);

/* Checks that there was no error and that only white space follows. The error's offset counts from data. */
xt_status xt_json_end(xt_json *json, xt_error *error);

/* Appends a string with its quotes and escapes. */
void xt_json_put_text(xt_buffer *out, const char *text, size_t size);

#endif
