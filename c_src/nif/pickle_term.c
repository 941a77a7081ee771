#include "nif/pickle_term.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/utf8.h"
#include "nif/pickle_walk.h"
#include "nif/term.h"

xt_status xt_pickle_walk_no_memory(xt_pickle_walk *w) {
  return xt_error_set(w->error, XT_STATUS_no_memory, "no memory to pickle the term");
}

/* ---- Where something is, for errors ---- */

enum { PATH_PARTS = 32 };

void xt_pickle_walk_describe(const xt_pickle_walk *w, uint32_t at, char *text, size_t room) {
  uint32_t parts[PATH_PARTS];
  int count = 0;
  size_t used = 0;
  for (; at && count < PATH_PARTS; at = w->paths[at - 1].parent) parts[count++] = at;
  text[0] = 0;
  while (count-- > 0 && used + 40 < room) {
    const xt_term_path *p = &w->paths[parts[count] - 1];
    ErlNifBinary key;
    size_t left = room - used < 120 ? room - used : 120;
    if (p->is_index) snprintf(text + used, left, "[%zu]", p->index);
    else if (enif_inspect_binary(w->env, p->key, &key) && xt_utf8_check(key.data, key.size) == XT_UTF8_VALID)
      snprintf(text + used, left, "[\"%.*s\"]", (int)(key.size < 100 ? key.size : 100), key.data);
    else enif_snprintf(text + used, left, "[%T]", p->key);
    used += strlen(text + used);
  }
}

xt_status xt_pickle_walk_refuse(xt_pickle_walk *w, const xt_pickle_task *t, const char *what) {
  char path[XT_PATH_TEXT];
  xt_pickle_walk_describe(w, t->path, path, sizeof path);
  return xt_error_set(w->error, XT_STATUS_bad_argument, "term%s cannot be saved: %s", path, what);
}

/* ---- Tasks ---- */

static bool push(xt_pickle_walk *w, xt_pickle_task t) {
  if (w->count == w->room) {
    size_t room = w->room ? 2 * w->room : 256;
    xt_pickle_task *grown = realloc(w->tasks, room * sizeof *grown);
    if (!grown) return false;
    w->tasks = grown;
    w->room = room;
  }
  w->tasks[w->count++] = t;
  return true;
}

bool xt_pickle_walk_push_op(xt_pickle_walk *w, uint8_t opcode) { return push(w, (xt_pickle_task){.opcode = opcode}); }

static uint32_t new_path(xt_pickle_walk *w, xt_term_path p) {
  if (w->path_count == w->path_room) {
    size_t room = w->path_room ? 2 * w->path_room : 256;
    xt_term_path *grown = realloc(w->paths, room * sizeof *grown);
    if (!grown) return 0;
    w->paths = grown;
    w->path_room = room;
  }
  w->paths[w->path_count++] = p;
  return (uint32_t)w->path_count;
}

bool xt_pickle_walk_push_at(xt_pickle_walk *w, const xt_pickle_task *in, ERL_NIF_TERM term, bool is_index,
                            ERL_NIF_TERM key, size_t index) {
  uint32_t at = new_path(w, (xt_term_path){in->path, is_index, key, index});
  return at && push(w, (xt_pickle_task){.term = term, .path = at});
}

uint32_t xt_pickle_walk_path(xt_pickle_walk *w, const xt_pickle_task *in, ERL_NIF_TERM key) {
  return new_path(w, (xt_term_path){in->path, false, key, 0});
}

static bool push_key(xt_pickle_walk *w, const xt_pickle_task *in, ERL_NIF_TERM key) {
  return push(w, (xt_pickle_task){.term = key, .path = in->path, .is_key = true});
}

/* ---- Leaves ---- */

xt_status xt_pickle_walk_put_text(xt_pickle_walk *w, const xt_pickle_task *t, const char *text, size_t size, bool raw) {
  if (!raw && xt_utf8_check((const uint8_t *)text, size) != XT_UTF8_VALID)
    return xt_pickle_walk_refuse(w, t, "a binary that is no UTF-8 text; wrap bytes in %ExTorch.Python.Bytes{}");
  if (size > UINT32_MAX) return xt_pickle_walk_refuse(w, t, "a text of more than 4 GiB");
  xt_pickler_put_text(w->out, text, size);
  return XT_STATUS_ok;
}

/* Atoms that are no strings in Python. */
static bool has_twin(ERL_NIF_TERM a) {
  return a == xt_am_nil || a == xt_am_true || a == xt_am_false || a == xt_am_nan || a == xt_am_infinity ||
         a == xt_am_neg_infinity;
}

static xt_status put_atom(xt_pickle_walk *w, const xt_pickle_task *t) {
  char text[1024];
  ERL_NIF_TERM a = t->term;
  if (has_twin(a)) {
    if (a == xt_am_nil) xt_pickler_put_none(w->out);
    else if (a == xt_am_true || a == xt_am_false) xt_pickler_put_bool(w->out, a == xt_am_true);
    else xt_pickler_put_float(w->out, a == xt_am_nan ? NAN : a == xt_am_infinity ? INFINITY : -INFINITY);
    return XT_STATUS_ok;
  }
  int size = enif_get_atom(w->env, a, text, sizeof text, ERL_NIF_LATIN1);
  if (!size) return xt_pickle_walk_refuse(w, t, "an atom with letters beyond Latin 1; use a string");
  /* Latin 1 to UTF-8 */
  char wide[2048];
  size_t length = 0;
  for (int i = 0; i < size - 1; i++) {
    uint8_t c = (uint8_t)text[i];
    if (c >= 0x80) wide[length++] = (char)(0xC0 | c >> 6), wide[length++] = (char)(0x80 | (c & 0x3F));
    else wide[length++] = (char)c;
  }
  return xt_pickle_walk_put_text(w, t, wide, length, false);
}

/* Large integers come as SMALL_BIG_EXT or LARGE_BIG_EXT. */
static xt_status put_integer(xt_pickle_walk *w, const xt_pickle_task *t) {
  ErlNifSInt64 value;
  ErlNifBinary external;
  if (enif_get_int64(w->env, t->term, &value)) {
    xt_pickler_put_int(w->out, value);
    return XT_STATUS_ok;
  }
  if (!enif_term_to_binary(w->env, t->term, &external)) return xt_pickle_walk_no_memory(w);
  const uint8_t *data = external.data;
  bool small = data[1] == 110;
  size_t head = small ? 4 : 7, size = small ? data[2] : (size_t)data[2] << 24 | data[3] << 16 | data[4] << 8 | data[5];
  xt_pickler_put_big(w->out, data + head, size, data[head - 1] != 0);
  enif_release_binary(&external);
  return XT_STATUS_ok;
}

static xt_status put_binary(xt_pickle_walk *w, const xt_pickle_task *t) {
  ErlNifBinary binary;
  if (!enif_inspect_binary(w->env, t->term, &binary)) return xt_pickle_walk_refuse(w, t, "a bitstring is no binary");
  return xt_pickle_walk_put_text(w, t, (const char *)binary.data, binary.size, false);
}

/* ---- Containers ---- */

/* Would the atom's string be a second key of the same dict? */
static bool is_twice(xt_pickle_walk *w, ERL_NIF_TERM map, ERL_NIF_TERM key) {
  char text[1024];
  ERL_NIF_TERM string, value;
  if (!enif_is_atom(w->env, key) || has_twin(key)) return false;
  int size = enif_get_atom(w->env, key, text, sizeof text, ERL_NIF_LATIN1);
  if (size < 1) return false;
  memcpy(enif_make_new_binary(w->env, (size_t)size - 1, &string), text, (size_t)size - 1);
  return enif_get_map_value(w->env, map, string, &value);
}

/* [{:key, value}, …] is a dict, as a keyword list is to Elixir. */
static bool is_keyword(ErlNifEnv *env, ERL_NIF_TERM list) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  int arity;
  if (enif_is_empty_list(env, list)) return false;
  while (enif_get_list_cell(env, list, &head, &list))
    if (!enif_get_tuple(env, head, &arity, &pair) || arity != 2 || !enif_is_atom(env, pair[0]) || has_twin(pair[0]))
      return false;
  return enif_is_empty_list(env, list);
}

void xt_pickle_walk_turn(xt_pickle_walk *w, size_t from) {
  for (size_t a = from, b = w->count; a + 1 < b; a++) {
    xt_pickle_task kept = w->tasks[a];
    w->tasks[a] = w->tasks[--b];
    w->tasks[b] = kept;
  }
}

static xt_status put_list(xt_pickle_walk *w, const xt_pickle_task *t) {
  ERL_NIF_TERM list = t->term, head;
  size_t index = 0;
  xt_pickler_put_list(w->out);
  if (enif_is_empty_list(w->env, list)) return XT_STATUS_ok;
  xt_pickler_put_mark(w->out);
  if (!xt_pickle_walk_push_op(w, 'e')) return xt_pickle_walk_no_memory(w);
  size_t from = w->count;
  for (; enif_get_list_cell(w->env, list, &head, &list); index++)
    if (!xt_pickle_walk_push_at(w, t, head, true, 0, index)) return xt_pickle_walk_no_memory(w);
  if (!enif_is_empty_list(w->env, list)) return xt_pickle_walk_refuse(w, t, "an improper list has no Python twin");
  xt_pickle_walk_turn(w, from);
  return XT_STATUS_ok;
}

xt_status xt_pickle_walk_push_pairs(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM list) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  int arity;
  size_t from = w->count;
  while (enif_get_list_cell(w->env, list, &head, &list)) {
    if (!enif_get_tuple(w->env, head, &arity, &pair) || arity != 2)
      return xt_pickle_walk_refuse(w, t, "the pairs of a dict are {key, value}");
    if (!push_key(w, t, pair[0]) || !xt_pickle_walk_push_at(w, t, pair[1], false, pair[0], 0))
      return xt_pickle_walk_no_memory(w);
  }
  if (!enif_is_empty_list(w->env, list)) return xt_pickle_walk_refuse(w, t, "the pairs of a dict are a list");
  xt_pickle_walk_turn(w, from);
  return XT_STATUS_ok;
}

xt_status xt_pickle_walk_put_pairs(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM list) {
  xt_pickler_put_dict(w->out);
  if (enif_is_empty_list(w->env, list)) return XT_STATUS_ok;
  xt_pickler_put_mark(w->out);
  return xt_pickle_walk_push_op(w, 'u') ? xt_pickle_walk_push_pairs(w, t, list) : xt_pickle_walk_no_memory(w);
}

xt_status xt_pickle_walk_push_map(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM map, bool keys_only) {
  ErlNifMapIterator at;
  ERL_NIF_TERM key, value;
  bool pushed = true, twice = false;
  if (!enif_map_iterator_create(w->env, map, &at, ERL_NIF_MAP_ITERATOR_LAST)) return xt_pickle_walk_no_memory(w);
  while (pushed && !twice && enif_map_iterator_get_pair(w->env, &at, &key, &value)) {
    twice = is_twice(w, map, key);
    if (!keys_only) pushed = xt_pickle_walk_push_at(w, t, value, false, key, 0);
    pushed = pushed && push_key(w, t, key);
    enif_map_iterator_prev(w->env, &at);
  }
  enif_map_iterator_destroy(w->env, &at);
  if (twice) return xt_pickle_walk_refuse(w, t, "it has a key as an atom and as a string, which are one in Python");
  return pushed ? XT_STATUS_ok : xt_pickle_walk_no_memory(w);
}

static xt_status put_map(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM map) {
  size_t size = 0;
  enif_get_map_size(w->env, map, &size);
  xt_pickler_put_dict(w->out);
  if (!size) return XT_STATUS_ok;
  xt_pickler_put_mark(w->out);
  return xt_pickle_walk_push_op(w, 'u') ? xt_pickle_walk_push_map(w, t, map, false) : xt_pickle_walk_no_memory(w);
}

static xt_status put_tuple(xt_pickle_walk *w, const xt_pickle_task *t) {
  const ERL_NIF_TERM *items;
  int arity;
  enif_get_tuple(w->env, t->term, &arity, &items);
  if (!arity) {
    xt_pickler_put_tuple_of(w->out, 0);
    return XT_STATUS_ok;
  }
  xt_pickler_put_mark(w->out);
  bool pushed = xt_pickle_walk_push_op(w, 't');
  for (int i = arity; pushed && i-- > 0;) pushed = xt_pickle_walk_push_at(w, t, items[i], true, 0, (size_t)i);
  return pushed ? XT_STATUS_ok : xt_pickle_walk_no_memory(w);
}

static xt_status put_term(xt_pickle_walk *w, const xt_pickle_task *t) {
  ERL_NIF_TERM module;
  switch (enif_term_type(w->env, t->term)) {
  case ERL_NIF_TERM_TYPE_ATOM: return put_atom(w, t);
  case ERL_NIF_TERM_TYPE_INTEGER: return put_integer(w, t);
  case ERL_NIF_TERM_TYPE_FLOAT: {
    double value;
    enif_get_double(w->env, t->term, &value);
    xt_pickler_put_float(w->out, value);
    return XT_STATUS_ok;
  }
  case ERL_NIF_TERM_TYPE_BITSTRING: return put_binary(w, t);
  case ERL_NIF_TERM_TYPE_LIST:
    if (t->is_key) return xt_pickle_walk_refuse(w, t, "a list cannot be a key in Python; use a tuple");
    return is_keyword(w->env, t->term) ? xt_pickle_walk_put_pairs(w, t, t->term) : put_list(w, t);
  case ERL_NIF_TERM_TYPE_TUPLE: return put_tuple(w, t);
  case ERL_NIF_TERM_TYPE_MAP:
    if (enif_get_map_value(w->env, t->term, xt_am___struct__, &module)) return xt_pickle_walk_put_struct(w, t, module);
    if (t->is_key) return xt_pickle_walk_refuse(w, t, "a map cannot be a key in Python");
    return put_map(w, t, t->term);
  default: return xt_pickle_walk_refuse(w, t, "a pid, port, reference or function has no Python twin");
  }
}

/* What comes soon is brought into the cache meanwhile. Most terms are addresses with a tag in the lowest bits; for the
 * others the hint is wasted, and harmless. */
static void look_ahead(const xt_pickle_walk *w) {
  enum { SOON = 12, LINE = 64 };
  if (w->count <= SOON) return;
  ERL_NIF_TERM soon = w->tasks[w->count - SOON].term;
  __builtin_prefetch((const void *)soon);
  __builtin_prefetch((const void *)(soon + LINE));
}

static xt_status walk(xt_pickle_walk *w, ERL_NIF_TERM term) {
  xt_status status = push(w, (xt_pickle_task){.term = term}) ? XT_STATUS_ok : xt_pickle_walk_no_memory(w);
  while (status == XT_STATUS_ok && w->count) {
    xt_pickle_task t = w->tasks[--w->count];
    look_ahead(w);
    if (!t.opcode) status = put_term(w, &t);
    else xt_buffer_byte(&w->out->out, t.opcode);
  }
  return status == XT_STATUS_ok && w->out->out.failed ? xt_pickle_walk_no_memory(w) : status;
}

xt_status xt_pickle_term(ErlNifEnv *env, ERL_NIF_TERM term, xt_save_tensors *tensors, xt_pickle_template *template,
                         xt_error *error) {
  xt_pickle_walk w = {.env = env, .tensors = tensors, .template = template, .out = &template->pickle, .error = error};
  xt_pickler_begin(w.out);
  xt_status status = walk(&w, term);
  xt_pickler_stop(w.out);
  free(w.tasks);
  free(w.paths);
  return status;
}
