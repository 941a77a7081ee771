#include "term_pickle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/element.h"
#include "core/node.h"
#include "core/utf8.h"
#include "nif_tensor.h"
#include "tensor_pickle.h"
#include "term.h"

/* What is to be done, last first: a term to write, or an instruction that ends what was begun. No recursion: a term may
 * be as deep as its maker likes. */
typedef struct {
  ERL_NIF_TERM term;
  uint32_t place; /* 1 + where in `places`; 0: the whole term */
  uint8_t opcode; /* not 0: this instruction, and no term */
  bool is_key;
} task;

/* How a part is reached from what it is a part of. */
typedef struct {
  uint32_t parent;
  bool is_index;
  ERL_NIF_TERM key;
  size_t index;
} place;

typedef struct {
  ErlNifEnv *env;
  xt_save_tensors *collect;     /* the first walk */
  const xt_save_tensors *known; /* the second */
  xt_pickler *out;
  bool views;
  size_t next; /* tensor */
  xt_error *error;
  task *tasks;
  size_t count, room;
  place *places;
  size_t place_count, place_room;
} walker;

static xt_status no_memory(walker *w) {
  return xt_error_set(w->error, XT_STATUS_no_memory, "no memory to pickle the term");
}

/* ---- Where something is, for errors ---- */

enum { PATH_PARTS = 32, PATH_TEXT = 600 };

static void describe_place(const walker *w, uint32_t at, char *text, size_t room) {
  uint32_t parts[PATH_PARTS];
  int count = 0;
  size_t used = 0;
  for (; at && count < PATH_PARTS; at = w->places[at - 1].parent) parts[count++] = at;
  text[0] = 0;
  while (count-- > 0 && used + 40 < room) {
    const place *p = &w->places[parts[count] - 1];
    ErlNifBinary key;
    size_t left = room - used < 120 ? room - used : 120;
    if (p->is_index) snprintf(text + used, left, "[%zu]", p->index);
    else if (enif_inspect_binary(w->env, p->key, &key) && xt_utf8_check(key.data, key.size) == XT_UTF8_VALID)
      snprintf(text + used, left, "[\"%.*s\"]", (int)(key.size < 100 ? key.size : 100), key.data);
    else enif_snprintf(text + used, left, "[%T]", p->key);
    used += strlen(text + used);
  }
}

static xt_status refuse(walker *w, const task *t, const char *what) {
  char path[PATH_TEXT];
  describe_place(w, t->place, path, sizeof path);
  return xt_error_set(w->error, XT_STATUS_bad_argument, "term%s cannot be saved: %s", path, what);
}

/* ---- Tasks ---- */

static bool push(walker *w, task t) {
  if (w->count == w->room) {
    size_t room = w->room ? 2 * w->room : 256;
    task *grown = realloc(w->tasks, room * sizeof *grown);
    if (!grown) return false;
    w->tasks = grown;
    w->room = room;
  }
  w->tasks[w->count++] = t;
  return true;
}

static bool push_op(walker *w, uint8_t opcode) { return push(w, (task){.opcode = opcode}); }

static uint32_t new_place(walker *w, place p) {
  if (w->place_count == w->place_room) {
    size_t room = w->place_room ? 2 * w->place_room : 256;
    place *grown = realloc(w->places, room * sizeof *grown);
    if (!grown) return 0;
    w->places = grown;
    w->place_room = room;
  }
  w->places[w->place_count++] = p;
  return (uint32_t)w->place_count;
}

static bool push_at(walker *w, const task *in, ERL_NIF_TERM term, bool is_index, ERL_NIF_TERM key, size_t index) {
  uint32_t at = new_place(w, (place){in->place, is_index, key, index});
  return at && push(w, (task){.term = term, .place = at});
}

static bool push_key(walker *w, const task *in, ERL_NIF_TERM key) {
  return push(w, (task){.term = key, .place = in->place, .is_key = true});
}

static bool is_writing(const walker *w) { return w->out != NULL; }

/* ---- Leaves ---- */

static xt_status put_text(walker *w, const task *t, const char *text, size_t size, bool raw) {
  if (!raw && xt_utf8_check((const uint8_t *)text, size) != XT_UTF8_VALID)
    return refuse(w, t, "a binary that is no UTF-8 text; wrap bytes in %ExTorch.Python.Bytes{}");
  if (size > UINT32_MAX) return refuse(w, t, "a text of more than 4 GiB");
  if (is_writing(w)) xt_put_text(w->out, text, size);
  return XT_STATUS_ok;
}

/* Atoms that are no strings in Python. */
static bool has_twin(ERL_NIF_TERM a) {
  return a == xt_am_nil || a == xt_am_true || a == xt_am_false || a == xt_am_nan || a == xt_am_infinity ||
         a == xt_am_neg_infinity;
}

static xt_status put_atom(walker *w, const task *t) {
  char text[1024];
  ERL_NIF_TERM a = t->term;
  if (has_twin(a)) {
    if (!is_writing(w)) return XT_STATUS_ok;
    if (a == xt_am_nil) xt_put_none(w->out);
    else if (a == xt_am_true || a == xt_am_false) xt_put_bool(w->out, a == xt_am_true);
    else xt_put_float(w->out, a == xt_am_nan ? NAN : a == xt_am_infinity ? INFINITY : -INFINITY);
    return XT_STATUS_ok;
  }
  int size = enif_get_atom(w->env, a, text, sizeof text, ERL_NIF_LATIN1);
  if (!size) return refuse(w, t, "an atom with letters beyond Latin 1; use a string");
  /* Latin 1 to UTF-8 */
  char wide[2048];
  size_t length = 0;
  for (int i = 0; i < size - 1; i++) {
    uint8_t c = (uint8_t)text[i];
    if (c >= 0x80) wide[length++] = (char)(0xC0 | c >> 6), wide[length++] = (char)(0x80 | (c & 0x3F));
    else wide[length++] = (char)c;
  }
  return put_text(w, t, wide, length, false);
}

/* Large integers come as SMALL_BIG_EXT or LARGE_BIG_EXT. */
static xt_status put_integer(walker *w, const task *t) {
  ErlNifSInt64 value;
  ErlNifBinary external;
  if (enif_get_int64(w->env, t->term, &value)) {
    if (is_writing(w)) xt_put_int(w->out, value);
    return XT_STATUS_ok;
  }
  if (!is_writing(w)) return XT_STATUS_ok;
  if (!enif_term_to_binary(w->env, t->term, &external)) return no_memory(w);
  const uint8_t *data = external.data;
  bool small = data[1] == 110;
  size_t head = small ? 4 : 7, size = small ? data[2] : (size_t)data[2] << 24 | data[3] << 16 | data[4] << 8 | data[5];
  xt_put_big(w->out, data + head, size, data[head - 1] != 0);
  enif_release_binary(&external);
  return XT_STATUS_ok;
}

static xt_status put_binary(walker *w, const task *t) {
  ErlNifBinary binary;
  if (!enif_inspect_binary(w->env, t->term, &binary)) return refuse(w, t, "a bitstring is no binary");
  return put_text(w, t, (const char *)binary.data, binary.size, false);
}

/* ---- Containers ---- */

/* Would the atom's string be a second key of the same dict? */
static bool is_twice(walker *w, ERL_NIF_TERM map, ERL_NIF_TERM key) {
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

/* Tasks come off last first, so what a list holds is turned round once it is pushed. */
static void turn(walker *w, size_t from) {
  for (size_t a = from, b = w->count; a + 1 < b; a++) {
    task kept = w->tasks[a];
    w->tasks[a] = w->tasks[--b];
    w->tasks[b] = kept;
  }
}

static xt_status put_list(walker *w, const task *t) {
  ERL_NIF_TERM list = t->term, head;
  size_t index = 0;
  if (is_writing(w)) xt_put_list(w->out);
  if (enif_is_empty_list(w->env, list)) return XT_STATUS_ok;
  if (is_writing(w)) xt_put_mark(w->out);
  if (!push_op(w, 'e')) return no_memory(w);
  size_t from = w->count;
  for (; enif_get_list_cell(w->env, list, &head, &list); index++)
    if (!push_at(w, t, head, true, 0, index)) return no_memory(w);
  if (!enif_is_empty_list(w->env, list)) return refuse(w, t, "an improper list has no Python twin");
  turn(w, from);
  return XT_STATUS_ok;
}

/* A list of {key, value}, into the dict below the mark. */
static xt_status push_pairs(walker *w, const task *t, ERL_NIF_TERM list) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  int arity;
  size_t from = w->count;
  while (enif_get_list_cell(w->env, list, &head, &list)) {
    if (!enif_get_tuple(w->env, head, &arity, &pair) || arity != 2)
      return refuse(w, t, "the pairs of a dict are {key, value}");
    if (!push_key(w, t, pair[0]) || !push_at(w, t, pair[1], false, pair[0], 0)) return no_memory(w);
  }
  if (!enif_is_empty_list(w->env, list)) return refuse(w, t, "the pairs of a dict are a list");
  turn(w, from);
  return XT_STATUS_ok;
}

static xt_status put_pairs(walker *w, const task *t, ERL_NIF_TERM list) {
  if (is_writing(w)) xt_put_dict(w->out);
  if (enif_is_empty_list(w->env, list)) return XT_STATUS_ok;
  if (is_writing(w)) xt_put_mark(w->out);
  return push_op(w, 'u') ? push_pairs(w, t, list) : no_memory(w);
}

static xt_status push_map(walker *w, const task *t, ERL_NIF_TERM map, bool keys_only) {
  ErlNifMapIterator at;
  ERL_NIF_TERM key, value;
  bool pushed = true, twice = false;
  if (!enif_map_iterator_create(w->env, map, &at, ERL_NIF_MAP_ITERATOR_LAST)) return no_memory(w);
  while (pushed && !twice && enif_map_iterator_get_pair(w->env, &at, &key, &value)) {
    twice = !is_writing(w) && is_twice(w, map, key);
    if (!keys_only) pushed = push_at(w, t, value, false, key, 0);
    pushed = pushed && push_key(w, t, key);
    enif_map_iterator_prev(w->env, &at);
  }
  enif_map_iterator_destroy(w->env, &at);
  if (twice) return refuse(w, t, "it has a key as an atom and as a string, which are one in Python");
  return pushed ? XT_STATUS_ok : no_memory(w);
}

static xt_status put_map(walker *w, const task *t, ERL_NIF_TERM map) {
  size_t size = 0;
  enif_get_map_size(w->env, map, &size);
  if (is_writing(w)) xt_put_dict(w->out);
  if (!size) return XT_STATUS_ok;
  if (is_writing(w)) xt_put_mark(w->out);
  return push_op(w, 'u') ? push_map(w, t, map, false) : no_memory(w);
}

static xt_status put_tuple(walker *w, const task *t) {
  const ERL_NIF_TERM *items;
  int arity;
  enif_get_tuple(w->env, t->term, &arity, &items);
  if (is_writing(w)) {
    if (arity) xt_put_mark(w->out);
    else xt_put_tuple_of(w->out, 0);
  }
  if (!arity) return XT_STATUS_ok;
  bool pushed = push_op(w, 't');
  for (int i = arity; pushed && i-- > 0;) pushed = push_at(w, t, items[i], true, 0, (size_t)i);
  return pushed ? XT_STATUS_ok : no_memory(w);
}

/* ---- Our own structs ---- */

static ERL_NIF_TERM field(walker *w, ERL_NIF_TERM map, ERL_NIF_TERM key) {
  ERL_NIF_TERM value = xt_am_nil;
  enif_get_map_value(w->env, map, key, &value);
  return value;
}

static bool get_text(walker *w, ERL_NIF_TERM map, ERL_NIF_TERM key, ErlNifBinary *out) {
  return enif_inspect_binary(w->env, field(w, map, key), out);
}

static bool has_newline(const ErlNifBinary *b) { return memchr(b->data, '\n', b->size) != NULL; }

static xt_status put_wrapped(walker *w, const task *t, ERL_NIF_TERM module) {
  ErlNifBinary data;
  if (!get_text(w, t->term, xt_am_data, &data)) return refuse(w, t, "its data is no binary");
  if (module == xt_am_module_raw_text) return put_text(w, t, (const char *)data.data, data.size, true);
  if (data.size > UINT32_MAX / 2) return refuse(w, t, "bytes of more than 2 GiB");
  if (!is_writing(w)) return XT_STATUS_ok;
  if (module == xt_am_module_byte_array) xt_put_global(w->out, "__builtin__\nbytearray\n");
  xt_put_bytes(w->out, data.data, data.size);
  if (module != xt_am_module_byte_array) return XT_STATUS_ok;
  xt_put_tuple_of(w->out, 1);
  xt_put_reduce(w->out);
  return XT_STATUS_ok;
}

static xt_status put_complex(walker *w, const task *t) {
  double re, im;
  if (!xt_get_complex(w->env, t->term, &re, &im)) return refuse(w, t, "its parts are no numbers");
  if (!is_writing(w)) return XT_STATUS_ok;
  xt_put_global(w->out, "__builtin__\ncomplex\n");
  xt_put_float(w->out, re);
  xt_put_float(w->out, im);
  xt_put_tuple_of(w->out, 2);
  xt_put_reduce(w->out);
  return XT_STATUS_ok;
}

static xt_status put_dtype(walker *w, const task *t) {
  xt_dtype dtype;
  if (!xt_get_dtype(w->env, field(w, t->term, xt_am_name), &dtype)) return refuse(w, t, "its name is no dtype");
  const char *name = xt_dtype_get(dtype)->name;
  if (is_writing(w)) xt_put_name(w->out, "torch", 5, name, strlen(name));
  return XT_STATUS_ok;
}

static xt_status put_device(walker *w, const task *t) {
  ErlNifBinary type;
  ErlNifSInt64 index;
  bool indexed = enif_get_int64(w->env, field(w, t->term, xt_am_index), &index);
  if (!get_text(w, t->term, xt_am_type, &type)) return refuse(w, t, "its type is no string");
  if (!is_writing(w)) return XT_STATUS_ok;
  xt_put_global(w->out, "torch\ndevice\n");
  xt_put_text(w->out, (const char *)type.data, type.size);
  if (indexed) xt_put_int(w->out, index);
  xt_put_tuple_of(w->out, indexed ? 2 : 1);
  xt_put_reduce(w->out);
  return XT_STATUS_ok;
}

static xt_status put_global(walker *w, const task *t) {
  ErlNifBinary module, name;
  if (!get_text(w, t->term, xt_am_module, &module) || !get_text(w, t->term, xt_am_name, &name) ||
      has_newline(&module) || has_newline(&name))
    return refuse(w, t, "its module and name are no strings of one line");
  if (is_writing(w)) xt_put_name(w->out, (const char *)module.data, module.size, (const char *)name.data, name.size);
  return XT_STATUS_ok;
}

/* class(*args) or class.__new__(class, *args); then what is appended, set, and the state. */
static xt_status put_object(walker *w, const task *t) {
  ERL_NIF_TERM list = field(w, t->term, xt_am_list), dict = field(w, t->term, xt_am_dict);
  ERL_NIF_TERM state = field(w, t->term, xt_am_state), args = field(w, t->term, xt_am_args), head;
  bool is_new = field(w, t->term, xt_am_new) == xt_am_true, pushed = true;
  xt_status status = XT_STATUS_ok;
  ERL_NIF_TERM pairs;
  if (!enif_is_tuple(w->env, args)) return refuse(w, t, "its args are no tuple");
  if (state != xt_am_nil) {
    pushed = push_op(w, 'b') && push_at(w, t, state, false, xt_am_state, 0);
  }
  if (pushed && dict != xt_am_nil) {
    pushed = push_op(w, 'u');
    if (pushed && enif_get_map_value(w->env, dict, xt_am_pairs, &pairs)) status = push_pairs(w, t, pairs);
    else if (pushed && enif_is_map(w->env, dict)) status = push_map(w, t, dict, false);
    else return refuse(w, t, "its dict is no map");
    pushed = pushed && push_op(w, '(');
  }
  if (pushed && list != xt_am_nil && status == XT_STATUS_ok) {
    pushed = push_op(w, 'e');
    size_t from = w->count;
    for (size_t i = 0; pushed && enif_get_list_cell(w->env, list, &head, &list); i++)
      pushed = push_at(w, t, head, true, 0, i);
    turn(w, from);
    pushed = pushed && push_op(w, '(');
  }
  pushed = pushed && push_op(w, is_new ? 0x81 : 'R') && push_at(w, t, args, false, xt_am_args, 0) &&
           push_at(w, t, field(w, t->term, xt_am_class), false, xt_am_class, 0);
  return status != XT_STATUS_ok ? status : pushed ? XT_STATUS_ok : no_memory(w);
}

static xt_status put_set(walker *w, const task *t) {
  ERL_NIF_TERM map = field(w, t->term, xt_am_map);
  if (!enif_is_map(w->env, map)) return refuse(w, t, "a MapSet without its map");
  size_t size = 0;
  enif_get_map_size(w->env, map, &size);
  if (is_writing(w)) {
    xt_put_global(w->out, "__builtin__\nset\n");
    xt_put_list(w->out);
    if (size) xt_put_mark(w->out);
  }
  if (!push_op(w, 'R') || !push_op(w, 0x85) || (size && !push_op(w, 'e'))) return no_memory(w);
  return push_map(w, t, map, true);
}

/* numpy.core.multiarray.scalar(dtype('<f4'), bytes) */
static xt_status put_scalar(walker *w, const task *t) {
  xt_dtype dtype;
  uint8_t bytes[16];
  char code[8];
  if (!xt_get_dtype(w->env, field(w, t->term, xt_am_dtype), &dtype) ||
      !xt_get_element(w->env, field(w, t->term, xt_am_value), dtype, bytes) || !xt_numpy_code(dtype, code))
    return refuse(w, t, "its value and dtype do not fit");
  if (is_writing(w)) xt_put_numpy_scalar(w->out, dtype, code, bytes);
  return XT_STATUS_ok;
}

/* ---- Tensors ---- */

static xt_status put_tensor(walker *w, const task *t) {
  xt_tensor_resource *resource;
  xt_tensor *handle;
  if (is_writing(w)) { /* the first walk had it in hand */
    xt_put_saved_tensor(w->out, w->known, &w->known->tensors[w->next++], w->views);
    return XT_STATUS_ok;
  }
  if (!xt_get_tensor(w->env, t->term, &resource)) return refuse(w, t, "a tensor without its resource");
  xt_status status = xt_tensor_take(resource, &handle, w->error);
  if (status == XT_STATUS_ok) status = xt_save_add(w->collect, handle, w->error);
  if (status == XT_STATUS_released || status == XT_STATUS_unsupported) {
    char path[PATH_TEXT];
    xt_error inner = *w->error;
    describe_place(w, t->place, path, sizeof path);
    xt_error_set(w->error, status, "term%s: %s", path, inner.message);
  }
  return status;
}

static xt_status put_raw_tensor(walker *w, const task *t) {
  int64_t sizes[XT_MAX_DIMS], strides[XT_MAX_DIMS], last = 0, step;
  int ndim, stride_count;
  xt_dtype dtype;
  ErlNifBinary data;
  bool empty = false;
  if (!xt_get_dtype(w->env, field(w, t->term, xt_am_dtype), &dtype) ||
      !xt_get_dims(w->env, field(w, t->term, xt_am_shape), sizes, &ndim) ||
      !xt_get_dims(w->env, field(w, t->term, xt_am_strides), strides, &stride_count) || ndim != stride_count ||
      !get_text(w, t->term, xt_am_data, &data))
    return refuse(w, t, "its fields are no dtype, shape, strides and data");
  for (int d = 0; d < ndim; d++) {
    if (sizes[d] < 0 || strides[d] < 0) return refuse(w, t, "it has a negative size or stride");
    empty |= sizes[d] == 0;
    if (sizes[d] &&
        (__builtin_mul_overflow(sizes[d] - 1, strides[d], &step) || __builtin_add_overflow(last, step, &last)))
      return refuse(w, t, "its shape overflows");
  }
  if (!empty && (uint64_t)last >= data.size / xt_dtype_get(dtype)->size)
    return refuse(w, t, "its data is shorter than its shape and strides say");
  if (is_writing(w)) {
    const xt_save_tensor *saved = &w->known->tensors[w->next++];
    xt_put_saved_bytes(w->out, w->known, saved, dtype, sizes, strides, ndim, w->views);
    return XT_STATUS_ok;
  }
  return xt_save_add_bytes(w->collect, field(w, t->term, xt_am_data), dtype, w->error);
}

/* torch._tensor._rebuild_from_type_v2(function, class, args, state): the function and its arguments are how the tensor
 * itself would be written, or an object's class and arguments. */
static xt_status put_subclass(walker *w, const task *t) {
  ERL_NIF_TERM inner = field(w, t->term, xt_am_tensor), module;
  bool object = enif_get_map_value(w->env, inner, xt_am___struct__, &module) && module == xt_am_module_object;
  ERL_NIF_TERM state = field(w, t->term, xt_am_state);
  if (is_writing(w)) xt_put_global(w->out, "torch._tensor\n_rebuild_from_type_v2\n");
  if (is_writing(w)) xt_put_mark(w->out);
  bool pushed = push_op(w, 'R') && push_op(w, 't') && push_at(w, t, state, false, xt_am_state, 0);
  if (object) {
    pushed = pushed && push_at(w, t, field(w, inner, xt_am_args), false, xt_am_args, 0) &&
             push_at(w, t, field(w, t->term, xt_am_class), false, xt_am_class, 0) &&
             push_at(w, t, field(w, inner, xt_am_class), false, xt_am_class, 0);
    return pushed ? XT_STATUS_ok : no_memory(w);
  }
  xt_tensor_resource *resource;
  if (!xt_get_tensor(w->env, inner, &resource)) return refuse(w, t, "its tensor is none");
  task tensor = {.term = inner, .place = t->place};
  if (!is_writing(w)) {
    pushed = pushed && push_at(w, t, field(w, t->term, xt_am_class), false, xt_am_class, 0);
    return pushed ? put_tensor(w, &tensor) : no_memory(w);
  }
  xt_put_saved_function(w->out, &w->known->tensors[w->next]);
  /* class is a global: written here, between function and arguments */
  task class = {.term = field(w, t->term, xt_am_class), .place = t->place};
  xt_status status = put_global(w, &class);
  if (status == XT_STATUS_ok) xt_put_saved_args(w->out, w->known, &w->known->tensors[w->next++], w->views);
  return pushed ? status : no_memory(w);
}

static xt_status put_struct(walker *w, const task *t, ERL_NIF_TERM module) {
  if (module == xt_am_module_tensor || module == xt_am_module_blob_view) return put_tensor(w, t);
  if (module == xt_am_module_dict) return put_pairs(w, t, field(w, t->term, xt_am_pairs));
  if (module == xt_am_module_bytes || module == xt_am_module_byte_array || module == xt_am_module_raw_text)
    return put_wrapped(w, t, module);
  if (module == xt_am_module_complex) return put_complex(w, t);
  if (module == xt_am_module_dtype) return put_dtype(w, t);
  if (module == xt_am_module_device) return put_device(w, t);
  if (module == xt_am_module_global) return put_global(w, t);
  if (module == xt_am_module_object) return put_object(w, t);
  if (module == xt_am_module_numpy_scalar) return put_scalar(w, t);
  if (module == xt_am_module_raw_tensor) return put_raw_tensor(w, t);
  if (module == xt_am_module_tensor_subclass) return put_subclass(w, t);
  if (module == xt_am_module_map_set) return put_set(w, t);
  if (module == xt_am_module_storage)
    return refuse(w, t, "a bare storage is only a name; make a tensor of its bytes (Checkpoint.read_storage/2)");
  char text[256];
  enif_snprintf(text, sizeof text, "a struct of %T; turn it into a map or a tensor first", module);
  return refuse(w, t, text);
}

static xt_status put_term(walker *w, const task *t) {
  ERL_NIF_TERM module;
  switch (enif_term_type(w->env, t->term)) {
  case ERL_NIF_TERM_TYPE_ATOM: return put_atom(w, t);
  case ERL_NIF_TERM_TYPE_INTEGER: return put_integer(w, t);
  case ERL_NIF_TERM_TYPE_FLOAT: {
    double value;
    enif_get_double(w->env, t->term, &value);
    if (is_writing(w)) xt_put_float(w->out, value);
    return XT_STATUS_ok;
  }
  case ERL_NIF_TERM_TYPE_BITSTRING: return put_binary(w, t);
  case ERL_NIF_TERM_TYPE_LIST:
    if (t->is_key) return refuse(w, t, "a list cannot be a key in Python; use a tuple");
    return is_keyword(w->env, t->term) ? put_pairs(w, t, t->term) : put_list(w, t);
  case ERL_NIF_TERM_TYPE_TUPLE: return put_tuple(w, t);
  case ERL_NIF_TERM_TYPE_MAP:
    if (enif_get_map_value(w->env, t->term, xt_am___struct__, &module)) return put_struct(w, t, module);
    if (t->is_key) return refuse(w, t, "a map cannot be a key in Python");
    return put_map(w, t, t->term);
  default: return refuse(w, t, "a pid, port, reference or function has no Python twin");
  }
}

static xt_status walk(walker *w, ERL_NIF_TERM term) {
  xt_status status = push(w, (task){.term = term}) ? XT_STATUS_ok : no_memory(w);
  while (status == XT_STATUS_ok && w->count) {
    task t = w->tasks[--w->count];
    if (!t.opcode) status = put_term(w, &t);
    else if (is_writing(w)) xt_buffer_byte(&w->out->out, t.opcode);
  }
  if (status == XT_STATUS_ok && is_writing(w) && w->out->out.failed) status = no_memory(w);
  free(w->tasks);
  free(w->places);
  return status;
}

xt_status xt_term_collect(ErlNifEnv *env, ERL_NIF_TERM term, xt_save_tensors *tensors, xt_error *error) {
  walker w = {.env = env, .collect = tensors, .error = error};
  return walk(&w, term);
}

xt_status xt_term_pickle(ErlNifEnv *env, ERL_NIF_TERM term, const xt_save_tensors *tensors, bool views, xt_pickler *out,
                         xt_error *error) {
  walker w = {.env = env, .known = tensors, .views = views, .out = out, .error = error};
  xt_pickler_begin(out);
  xt_status status = walk(&w, term);
  xt_pickler_stop(out);
  return status;
}
