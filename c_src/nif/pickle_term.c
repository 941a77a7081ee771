#include "nif/pickle_term.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/array.h"
#include "core/base/utf8.h"
#include "core/memory/memory.h"
#include "nif/pickle_walk.h"
#include "nif/term.h"

xt_status xt_pickle_walk_no_memory(xt_pickle_walk *w) {
  return xt_error_set(w->error, XT_STATUS_no_memory, "out of memory while pickling the term");
}

/* ---- Errors ---- */

enum { PATH_PARTS = 32 };

void xt_pickle_walk_describe(const xt_pickle_walk *w, uint32_t path, char *text, size_t size) {
  uint32_t parts[PATH_PARTS];
  int count = 0;
  size_t used = 0;
  for (; w->paths[path - 1].parent && count < PATH_PARTS; path = w->paths[path - 1].parent)
    if (!w->paths[path - 1].hidden) parts[count++] = path;
  text[0] = 0;
  while (count-- > 0 && used + 40 < size) {
    const xt_term_path *p = &w->paths[parts[count] - 1];
    ErlNifBinary key;
    size_t room = size - used < 120 ? size - used : 120;
    if (p->is_index) snprintf(text + used, room, "[%zu]", p->index);
    else if (enif_inspect_binary(w->env, p->key, &key) && xt_utf8_check(key.data, key.size) == XT_UTF8_VALID)
      snprintf(text + used, room, "[\"%.*s\"]", (int)(key.size < 100 ? key.size : 100), key.data);
    else enif_snprintf(text + used, room, "[%T]", p->key);
    used += strlen(text + used);
  }
}

xt_status xt_pickle_walk_fail(xt_pickle_walk *w, const xt_pickle_task *t, const char *reason) {
  char path[XT_PATH_TEXT];
  xt_pickle_walk_describe(w, t->path, path, sizeof path);
  return xt_error_set(w->error, XT_STATUS_bad_argument, "cannot save term%s: %s", path, reason);
}

/* ---- Tasks ---- */

static bool push(xt_pickle_walk *w, xt_pickle_task t) {
  if (!xt_array_reserve(&w->tasks, &w->room, w->count + 1, sizeof *w->tasks)) return false;
  w->tasks[w->count++] = t;
  return true;
}

bool xt_pickle_walk_push_op(xt_pickle_walk *w, xt_opcode opcode) {
  return push(w, (xt_pickle_task){.opcode = (uint8_t)opcode});
}

bool xt_pickle_walk_push_complete(xt_pickle_walk *w, xt_opcode opcode, uint32_t container) {
  return push(w, (xt_pickle_task){.opcode = (uint8_t)opcode, .path = container});
}

bool xt_pickle_walk_push_again(xt_pickle_walk *w, ERL_NIF_TERM term, uint32_t path) {
  return push(w, (xt_pickle_task){.term = term, .path = path});
}

static uint32_t new_path(xt_pickle_walk *w, xt_term_path p) {
  if (!xt_array_reserve(&w->paths, &w->path_room, w->path_count + 1, sizeof *w->paths)) return 0;
  w->paths[w->path_count++] = p;
  return (uint32_t)w->path_count;
}

bool xt_pickle_walk_push_at(xt_pickle_walk *w, const xt_pickle_task *in, ERL_NIF_TERM term, bool is_index,
                            ERL_NIF_TERM key, size_t index) {
  uint32_t at = new_path(w, (xt_term_path){.parent = in->path, .is_index = is_index, .key = key, .index = index});
  return at && push(w, (xt_pickle_task){.term = term, .path = at});
}

uint32_t xt_pickle_walk_path(xt_pickle_walk *w, const xt_pickle_task *in, ERL_NIF_TERM key) {
  return new_path(w, (xt_term_path){.parent = in->path, .key = key});
}

/* Only a container needs a path of its own. */
static bool push_key(xt_pickle_walk *w, const xt_pickle_task *in, ERL_NIF_TERM key) {
  uint32_t path = in->path;
  if (enif_is_tuple(w->env, key) || enif_is_map(w->env, key))
    path = new_path(w, (xt_term_path){.parent = in->path, .hidden = true});
  return path && push(w, (xt_pickle_task){.term = key, .path = path, .is_key = true});
}

/* ---- Leaves ---- */

xt_status xt_pickle_walk_put_text(xt_pickle_walk *w, const xt_pickle_task *t, const char *text, size_t size, bool raw) {
  if (!raw && xt_utf8_check((const uint8_t *)text, size) != XT_UTF8_VALID)
    return xt_pickle_walk_fail(w, t, "the binary is not valid UTF-8; wrap bytes in %ExTorch.Python.Bytes{}");
  if (size > UINT32_MAX) return xt_pickle_walk_fail(w, t, "the string is larger than 4 GiB");
  xt_pickler_put_text(w->out, text, size);
  return XT_STATUS_ok;
}

/* Atoms that are not saved as strings. */
static bool is_constant(ERL_NIF_TERM a) {
  return a == xt_am_nil || a == xt_am_true || a == xt_am_false || a == xt_am_nan || a == xt_am_infinity ||
         a == xt_am_neg_infinity;
}

static xt_status put_atom(xt_pickle_walk *w, const xt_pickle_task *t) {
  char text[1024];
  ERL_NIF_TERM a = t->term;
  if (is_constant(a)) {
    if (a == xt_am_nil) xt_pickler_put_none(w->out);
    else if (a == xt_am_true || a == xt_am_false) xt_pickler_put_bool(w->out, a == xt_am_true);
    else xt_pickler_put_float(w->out, a == xt_am_nan ? NAN : a == xt_am_infinity ? INFINITY : -INFINITY);
    return XT_STATUS_ok;
  }
  int size = enif_get_atom(w->env, a, text, sizeof text, ERL_NIF_LATIN1);
  if (!size) return xt_pickle_walk_fail(w, t, "the atom has characters outside Latin-1; use a string");
  char utf8[2 * sizeof text];
  size_t length = 0;
  for (int i = 0; i < size - 1; i++) length += xt_utf8_encode(utf8 + length, (uint8_t)text[i]);
  return xt_pickle_walk_put_text(w, t, utf8, length, false);
}

/* The digits of a large integer are read from its external term format, SMALL_BIG_EXT or LARGE_BIG_EXT. */
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
  if (!enif_inspect_binary(w->env, t->term, &binary))
    return xt_pickle_walk_fail(w, t, "the bitstring is not a whole number of bytes");
  return xt_pickle_walk_put_text(w, t, (const char *)binary.data, binary.size, false);
}

/* ---- Containers ---- */

/* Returns whether the map has the string of an atom key as another key. */
static bool has_string_key(xt_pickle_walk *w, ERL_NIF_TERM map, ERL_NIF_TERM key) {
  char text[1024];
  ERL_NIF_TERM string, value;
  if (!enif_is_atom(w->env, key) || is_constant(key)) return false;
  int size = enif_get_atom(w->env, key, text, sizeof text, ERL_NIF_LATIN1);
  if (size < 1) return false;
  memcpy(enif_make_new_binary(w->env, (size_t)size - 1, &string), text, (size_t)size - 1);
  return enif_get_map_value(w->env, map, string, &value);
}

/* Keyword lists are saved as dicts. */
static bool is_keyword(ErlNifEnv *env, ERL_NIF_TERM list) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  int arity;
  if (enif_is_empty_list(env, list)) return false;
  while (enif_get_list_cell(env, list, &head, &list))
    if (!enif_get_tuple(env, head, &arity, &pair) || arity != 2 || !enif_is_atom(env, pair[0]) || is_constant(pair[0]))
      return false;
  return enif_is_empty_list(env, list);
}

void xt_pickle_walk_reverse(xt_pickle_walk *w, size_t from) {
  for (size_t a = from, b = w->count; a + 1 < b; a++) {
    xt_pickle_task task = w->tasks[a];
    w->tasks[a] = w->tasks[--b];
    w->tasks[b] = task;
  }
}

static xt_status put_list(xt_pickle_walk *w, const xt_pickle_task *t) {
  ERL_NIF_TERM list = t->term, head;
  size_t index = 0;
  uint32_t number;
  bool written = false;
  xt_status status = enif_is_empty_list(w->env, list) ? XT_STATUS_ok : xt_pickle_walk_enter(w, t, &number, &written);
  if (status != XT_STATUS_ok || written) return status;
  xt_pickler_put_list(w->out);
  if (enif_is_empty_list(w->env, list)) return XT_STATUS_ok;
  xt_pickle_walk_created(w, number);
  xt_pickler_put_mark(w->out);
  if (!xt_pickle_walk_push_op(w, XT_OP_APPENDS)) return xt_pickle_walk_no_memory(w);
  size_t from = w->count;
  for (; enif_get_list_cell(w->env, list, &head, &list); index++)
    if (!xt_pickle_walk_push_at(w, t, head, true, 0, index)) return xt_pickle_walk_no_memory(w);
  if (!enif_is_empty_list(w->env, list)) return xt_pickle_walk_fail(w, t, "improper lists have no Python equivalent");
  xt_pickle_walk_reverse(w, from);
  return XT_STATUS_ok;
}

xt_status xt_pickle_walk_push_pairs(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM list) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  int arity;
  size_t from = w->count;
  while (enif_get_list_cell(w->env, list, &head, &list)) {
    if (!enif_get_tuple(w->env, head, &arity, &pair) || arity != 2)
      return xt_pickle_walk_fail(w, t, "the pairs of a dict must be {key, value} tuples");
    if (!push_key(w, t, pair[0]) || !xt_pickle_walk_push_at(w, t, pair[1], false, pair[0], 0))
      return xt_pickle_walk_no_memory(w);
  }
  if (!enif_is_empty_list(w->env, list)) return xt_pickle_walk_fail(w, t, "the pairs of a dict must be a list");
  xt_pickle_walk_reverse(w, from);
  return XT_STATUS_ok;
}

xt_status xt_pickle_walk_put_pairs(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM list) {
  uint32_t number;
  bool written = false;
  xt_status status = enif_is_empty_list(w->env, list) ? XT_STATUS_ok : xt_pickle_walk_enter(w, t, &number, &written);
  if (status != XT_STATUS_ok || written) return status;
  xt_pickler_put_dict(w->out);
  if (enif_is_empty_list(w->env, list)) return XT_STATUS_ok;
  xt_pickle_walk_created(w, number);
  xt_pickler_put_mark(w->out);
  return xt_pickle_walk_push_op(w, XT_OP_SETITEMS) ? xt_pickle_walk_push_pairs(w, t, list)
                                                   : xt_pickle_walk_no_memory(w);
}

xt_status xt_pickle_walk_push_map(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM map, bool keys_only) {
  ErlNifMapIterator at;
  ERL_NIF_TERM key, value;
  bool pushed = true, duplicate = false;
  if (!enif_map_iterator_create(w->env, map, &at, ERL_NIF_MAP_ITERATOR_LAST)) return xt_pickle_walk_no_memory(w);
  while (pushed && !duplicate && enif_map_iterator_get_pair(w->env, &at, &key, &value)) {
    duplicate = has_string_key(w, map, key);
    if (!keys_only) pushed = xt_pickle_walk_push_at(w, t, value, false, key, 0);
    pushed = pushed && push_key(w, t, key);
    enif_map_iterator_prev(w->env, &at);
  }
  enif_map_iterator_destroy(w->env, &at);
  if (duplicate)
    return xt_pickle_walk_fail(w, t, "it has the same key as an atom and as a string, which are equal in Python");
  return pushed ? XT_STATUS_ok : xt_pickle_walk_no_memory(w);
}

static xt_status put_map(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM map) {
  size_t size = 0;
  uint32_t number;
  bool written = false;
  enif_get_map_size(w->env, map, &size);
  xt_status status = size ? xt_pickle_walk_enter(w, t, &number, &written) : XT_STATUS_ok;
  if (status != XT_STATUS_ok || written) return status;
  xt_pickler_put_dict(w->out);
  if (!size) return XT_STATUS_ok;
  xt_pickle_walk_created(w, number);
  xt_pickler_put_mark(w->out);
  return xt_pickle_walk_push_op(w, XT_OP_SETITEMS) ? xt_pickle_walk_push_map(w, t, map, false)
                                                   : xt_pickle_walk_no_memory(w);
}

static xt_status put_tuple(xt_pickle_walk *w, const xt_pickle_task *t) {
  const ERL_NIF_TERM *items;
  int arity;
  enif_get_tuple(w->env, t->term, &arity, &items);
  if (!arity) {
    xt_pickler_put_tuple_of(w->out, 0);
    return XT_STATUS_ok;
  }
  uint32_t number;
  bool written;
  xt_status status = xt_pickle_walk_enter(w, t, &number, &written);
  if (status != XT_STATUS_ok || written) return status;
  xt_pickler_put_mark(w->out);
  bool pushed = xt_pickle_walk_push_complete(w, XT_OP_TUPLE, number);
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
    if (t->is_key) return xt_pickle_walk_fail(w, t, "a list cannot be a key in Python; use a tuple");
    return is_keyword(w->env, t->term) ? xt_pickle_walk_put_pairs(w, t, t->term) : put_list(w, t);
  case ERL_NIF_TERM_TYPE_TUPLE: return put_tuple(w, t);
  case ERL_NIF_TERM_TYPE_MAP:
    if (enif_get_map_value(w->env, t->term, xt_am___struct__, &module)) return xt_pickle_walk_put_struct(w, t, module);
    if (t->is_key) return xt_pickle_walk_fail(w, t, "a map cannot be a key in Python");
    return put_map(w, t, t->term);
  default: return xt_pickle_walk_fail(w, t, "pids, ports, references and functions have no Python equivalent");
  }
}

/* Prefetches a term that will be written soon. Most terms are addresses with a tag in the lowest bits; for other terms
 * the prefetch has no effect. */
static void prefetch(const xt_pickle_walk *w) {
  enum { AHEAD = 12, CACHE_LINE = 64 };
  if (w->count <= AHEAD) return;
  ERL_NIF_TERM term = w->tasks[w->count - AHEAD].term;
  __builtin_prefetch((const void *)term);
  __builtin_prefetch((const void *)(term + CACHE_LINE));
}

/* What a term contains several times is written as often, so that a small term may have a large pickle: its memory is
 * charged to the budget, and the walk ends with the caller. */
static xt_status check(xt_pickle_walk *w) {
  int64_t held = (int64_t)(w->out->out.room + w->room * sizeof *w->tasks + w->path_room * sizeof *w->paths +
                           w->container_room * sizeof *w->containers);
  if (!enif_is_current_process_alive(w->env))
    return xt_error_set(w->error, XT_STATUS_stopping, "the calling process has exited");
  if (held <= w->charged) return XT_STATUS_ok;
  if (!xt_memory_charge(held - w->charged)) {
    xt_memory_refused(); /* resets the reason */
    return xt_error_set(w->error, XT_STATUS_limit,
                        "the pickle of the term has more than %zu bytes and exceeds the budget; what a term contains "
                        "several times is written as often",
                        w->out->out.size);
  }
  w->charged = held;
  return XT_STATUS_ok;
}

static xt_status walk(xt_pickle_walk *w, ERL_NIF_TERM term) {
  enum { CHECK_TASKS = 1 << 16 };
  size_t tasks = 0;
  uint32_t root = new_path(w, (xt_term_path){0});
  xt_status status = root && xt_pickle_walk_push_again(w, term, root) ? XT_STATUS_ok : xt_pickle_walk_no_memory(w);
  while (status == XT_STATUS_ok && w->count) {
    xt_pickle_task t = w->tasks[--w->count];
    prefetch(w);
    if (!t.opcode) status = put_term(w, &t);
    else if (t.path) xt_pickle_walk_complete(w, &t);
    else xt_pickler_put_op(w->out, t.opcode);
    if (status == XT_STATUS_ok && ++tasks % CHECK_TASKS == 0) status = check(w);
  }
  return status == XT_STATUS_ok && w->out->out.failed ? xt_pickle_walk_no_memory(w) : status;
}

xt_status xt_pickle_term(ErlNifEnv *env, ERL_NIF_TERM term, xt_draft *draft, xt_error *error) {
  xt_pickle_walk w = {.env = env, .draft = draft, .out = &draft->pickle, .error = error};
  xt_status status = walk(&w, term);
  xt_memory_discharge(w.charged);
  free(w.tasks);
  free(w.paths);
  free(w.containers);
  xt_table_free(&w.by_term);
  xt_table_free(&w.by_step);
  xt_arena_free(&w.keys);
  return status;
}
