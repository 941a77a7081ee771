/* Any operator by name: Elixir terms to values, the call, and its results back to terms. */
#include <math.h>
#include <string.h>

#include "core/memory/memory.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* ---- Where it runs ----
 *
 * A dirty switch costs some microseconds, more than many small operators take. So calls whose length is known to be
 * tiny stay on the normal scheduler: operators that only make a view, whatever the size, and pointwise ones while the
 * broadcast result cannot exceed BRIEF_ELEMENTS. All others, known to be long or not known at all, go to a dirty one.
 */

enum { BRIEF_ELEMENTS = 2048, BRIEF_NODES = 64, BRIEF_TEXT = 4096, MAX_DEPTH = 8, MAX_RESULTS = 32, NAME_SIZE = 256 };

static const char *const view_names[] = {"alias",   "as_strided", "detach",  "diagonal",  "expand", "expand_as",
                                         "movedim", "narrow",     "permute", "select",    "slice",  "squeeze",
                                         "t",       "transpose",  "unfold",  "unsqueeze", "view",   "view_as"};

static const char *const pointwise_names[] = {
    "abs",        "abs_",       "add",       "add_",        "bitwise_and", "bitwise_not", "bitwise_or",  "bitwise_xor",
    "ceil",       "clamp",      "clamp_max", "clamp_min",   "clone",       "copy_",       "cos",         "div",
    "div_",       "eq",         "exp",       "exp_",        "fill_",       "floor",       "ge",          "gt",
    "item",       "le",         "log",       "logical_and", "logical_not", "logical_or",  "logical_xor", "lt",
    "maximum",    "minimum",    "mul",       "mul_",        "ne",          "neg",         "neg_",        "pow",
    "reciprocal", "relu",       "relu_",     "remainder",   "round",       "rsqrt",       "sigmoid",     "sign",
    "sin",        "sqrt",       "square",    "sub",         "sub_",        "tan",         "tanh",        "where",
    "zero_",      "contiguous", "reshape",   "flatten",     "all",         "any",         "max",         "min",
    "mean",       "prod",       "sum",       "argmax",      "argmin"};

static bool named(const char *name, const char *const *names, size_t count) {
  if (!strncmp(name, "aten::", 6)) name += 6;
  size_t length = strcspn(name, "."); /* the overload does not matter here */
  for (size_t i = 0; i < count; i++)
    if (strlen(names[i]) == length && !memcmp(names[i], name, length)) return true;
  return false;
}

/* ---- Terms to values ---- */

typedef struct {
  ErlNifEnv *env;
  xt_arena arena;
  xt_tensor_resource **used; /* what xt_tensor_enter succeeded for */
  size_t used_count, used_room;
  size_t nodes, node_limit;
  double elements; /* the product of the tensors' sizes: no broadcast is larger */
  bool too_many;
  xt_error *error;
} decoder;

static xt_status bad(decoder *in, const char *text) {
  return xt_error_set(in->error, XT_STATUS_bad_argument, "%s", text);
}

/* A call that is too long for a normal scheduler is not an error there: it is decoded again on a dirty one. */
static xt_status too_many(decoder *in) {
  in->too_many = true;
  return bad(in, "too many arguments");
}

/* Counts no further than the decoder may go on this scheduler. */
static bool get_length(decoder *in, ERL_NIF_TERM list, size_t *length) {
  ERL_NIF_TERM head;
  *length = 0;
  while (*length <= in->node_limit && enif_get_list_cell(in->env, list, &head, &list)) ++*length;
  return *length > in->node_limit || enif_is_empty_list(in->env, list);
}

static xt_status decode(decoder *in, ERL_NIF_TERM term, int depth, xt_value *out);

static xt_status decode_tensor(decoder *in, xt_tensor_resource *resource, xt_value *out) {
  if (in->used_count == in->used_room) {
    size_t room = in->used_room ? 2 * in->used_room : 8;
    xt_tensor_resource **grown = xt_arena_alloc(&in->arena, room, sizeof *grown);
    if (!grown) return xt_error_set(in->error, XT_STATUS_no_memory, "no memory for the arguments");
    if (in->used_count) memcpy(grown, in->used, in->used_count * sizeof *grown);
    in->used = grown;
    in->used_room = room;
  }
  xt_status status = xt_tensor_enter(resource, in->error);
  if (status != XT_STATUS_ok) return status;
  in->used[in->used_count++] = resource;
  /* what is sparse, or on a device that may keep us waiting, is never brief */
  const xt_tensor_info *info = &resource->handle->info;
  bool quick = info->strides && (info->device.type == XT_DEVICE_CPU || info->device.type == XT_DEVICE_META);
  in->elements *= quick ? (double)info->numel : INFINITY;
  out->kind = XT_VALUE_TENSOR;
  out->tensor = resource->handle;
  return XT_STATUS_ok;
}

static xt_status decode_name(decoder *in, ERL_NIF_TERM atom, xt_value *out) {
  char name[NAME_SIZE];
  if (!enif_get_atom(in->env, atom, name, sizeof name, ERL_NIF_LATIN1))
    return bad(in, "an argument is an atom that no operator knows");
  out->kind = XT_VALUE_NAME;
  out->name.text = xt_arena_text(&in->arena, name, strlen(name));
  return out->name.text ? XT_STATUS_ok : xt_error_set(in->error, XT_STATUS_no_memory, "no memory for the arguments");
}

static xt_status decode_items(decoder *in, ERL_NIF_TERM list, const ERL_NIF_TERM *items, size_t count, int depth,
                              xt_value *out) {
  ERL_NIF_TERM head;
  if (depth == MAX_DEPTH) return bad(in, "an argument is nested too deeply");
  in->nodes += count;
  if (in->nodes > in->node_limit) return too_many(in);
  out->kind = XT_VALUE_LIST;
  out->list.count = count;
  out->list.items = xt_arena_alloc(&in->arena, count, sizeof *out->list.items);
  if (!out->list.items) return xt_error_set(in->error, XT_STATUS_no_memory, "no memory for the arguments");
  for (size_t i = 0; i < count; i++) {
    if (!items) enif_get_list_cell(in->env, list, &head, &list);
    xt_status status = decode(in, items ? items[i] : head, depth + 1, &out->list.items[i]);
    if (status != XT_STATUS_ok) return status;
  }
  return XT_STATUS_ok;
}

static xt_status decode_tuple(decoder *in, const ERL_NIF_TERM *items, int arity, int depth, xt_value *out) {
  ErlNifSInt64 index;
  if (arity == 2 && enif_is_atom(in->env, items[0]) && enif_get_int64(in->env, items[1], &index)) {
    out->name.indexed = true; /* {:cuda, 0}, {:f, 32} */
    out->name.index = index;
    return decode_name(in, items[0], out);
  }
  return decode_items(in, 0, items, (size_t)arity, depth, out); /* a shape */
}

static xt_status decode(decoder *in, ERL_NIF_TERM term, int depth, xt_value *out) {
  xt_tensor_resource *resource;
  ErlNifSInt64 integer;
  ErlNifBinary binary;
  const ERL_NIF_TERM *items;
  size_t length;
  int arity;
  *out = (xt_value){.kind = XT_VALUE_NIL};
  switch (enif_term_type(in->env, term)) {
  case ERL_NIF_TERM_TYPE_ATOM:
    if (term == xt_am_nil) return XT_STATUS_ok;
    out->kind = XT_VALUE_BOOL;
    return xt_get_bool(in->env, term, &out->boolean) ? XT_STATUS_ok : decode_name(in, term, out);
  case ERL_NIF_TERM_TYPE_INTEGER:
    if (!enif_get_int64(in->env, term, &integer)) return bad(in, "an integer does not fit 64 bits");
    out->kind = XT_VALUE_INT;
    out->integer = integer;
    return XT_STATUS_ok;
  case ERL_NIF_TERM_TYPE_FLOAT:
    out->kind = XT_VALUE_FLOAT;
    enif_get_double(in->env, term, &out->number);
    return XT_STATUS_ok;
  case ERL_NIF_TERM_TYPE_BITSTRING:
    if (!enif_inspect_binary(in->env, term, &binary)) return bad(in, "an argument is a bitstring that is no binary");
    if (in->node_limit != SIZE_MAX && binary.size > BRIEF_TEXT) return too_many(in);
    out->kind = XT_VALUE_TEXT;
    out->text.data = xt_arena_text(&in->arena, (char *)binary.data, binary.size);
    out->text.size = binary.size;
    return out->text.data ? XT_STATUS_ok : xt_error_set(in->error, XT_STATUS_no_memory, "no memory for the arguments");
  case ERL_NIF_TERM_TYPE_LIST:
    if (!get_length(in, term, &length)) return bad(in, "an argument is an improper list");
    return decode_items(in, term, NULL, length, depth, out);
  case ERL_NIF_TERM_TYPE_TUPLE:
    enif_get_tuple(in->env, term, &arity, &items);
    return decode_tuple(in, items, arity, depth, out);
  default:
    if (xt_get_tensor(in->env, term, &resource)) return decode_tensor(in, resource, out);
    out->kind = XT_VALUE_COMPLEX;
    if (xt_get_complex(in->env, term, &out->complex.re, &out->complex.im)) return XT_STATUS_ok;
    return bad(in, "an argument is no tensor, number, boolean, string, atom, list or tuple");
  }
}

static xt_status decode_kwargs(decoder *in, ERL_NIF_TERM list, xt_op_call *call) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  ErlNifBinary key;
  unsigned length = 0;
  int arity;
  char name[NAME_SIZE];
  enif_get_list_length(in->env, list, &length);
  xt_named_value *kwargs = xt_arena_alloc(&in->arena, length, sizeof *kwargs);
  if (!kwargs) return xt_error_set(in->error, XT_STATUS_no_memory, "no memory for the arguments");
  for (unsigned i = 0; i < length; i++) {
    enif_get_list_cell(in->env, list, &head, &list);
    if (!enif_get_tuple(in->env, head, &arity, &pair) || arity != 2)
      return bad(in, "keyword arguments are {name, value} pairs");
    if (enif_get_atom(in->env, pair[0], name, sizeof name, ERL_NIF_LATIN1))
      kwargs[i].name = xt_arena_text(&in->arena, name, strlen(name));
    else if (enif_inspect_binary(in->env, pair[0], &key))
      kwargs[i].name = xt_arena_text(&in->arena, (char *)key.data, key.size);
    else return bad(in, "the name of a keyword argument is an atom or a string");
    if (!kwargs[i].name) return xt_error_set(in->error, XT_STATUS_no_memory, "no memory for the arguments");
    xt_status status = decode(in, pair[1], 0, &kwargs[i].value);
    if (status != XT_STATUS_ok) return status;
  }
  call->kwargs = kwargs;
  call->kwarg_count = length;
  return XT_STATUS_ok;
}

/* ---- Values to terms ---- */

static ERL_NIF_TERM make_value(ErlNifEnv *env, const xt_value *value);

static ERL_NIF_TERM make_list(ErlNifEnv *env, const xt_value *items, size_t count) {
  ERL_NIF_TERM list = enif_make_list(env, 0);
  while (count--) list = enif_make_list_cell(env, make_value(env, &items[count]), list);
  return list;
}

static ERL_NIF_TERM make_value(ErlNifEnv *env, const xt_value *value) {
  switch (value->kind) {
  case XT_VALUE_BOOL: return xt_make_bool(value->boolean);
  case XT_VALUE_INT: return enif_make_int64(env, value->integer);
  case XT_VALUE_FLOAT: return xt_make_float(env, value->number);
  case XT_VALUE_COMPLEX: return xt_make_complex(env, value->complex.re, value->complex.im);
  case XT_VALUE_TEXT: return xt_make_text(env, value->text.data, value->text.size);
  case XT_VALUE_NAME: return enif_make_atom(env, value->name.text); /* a dtype of our table */
  case XT_VALUE_TENSOR: return xt_make_tensor(env, value->tensor);
  case XT_VALUE_LIST: return make_list(env, value->list.items, value->list.count);
  default: return xt_am_nil;
  }
}

/* One result is itself, several are a tuple, none is :ok. */
static ERL_NIF_TERM make_results(ErlNifEnv *env, const xt_value *results, size_t count) {
  ERL_NIF_TERM terms[MAX_RESULTS];
  if (count == 0) return xt_am_ok;
  if (count == 1) return make_value(env, results);
  if (count > MAX_RESULTS) return make_list(env, results, count); /* no operator has so many */
  for (size_t i = 0; i < count; i++) terms[i] = make_value(env, &results[i]);
  return enif_make_tuple_from_array(env, terms, (unsigned)count);
}

static void drop_results(const xt_value *results, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (results[i].kind == XT_VALUE_TENSOR) xt_tensor_drop(results[i].tensor);
    if (results[i].kind == XT_VALUE_LIST) drop_results(results[i].list.items, results[i].list.count);
  }
}

/* ---- The call ---- */

static bool get_name(ErlNifEnv *env, ERL_NIF_TERM term, char *name, size_t size) {
  ErlNifBinary text;
  if (!enif_inspect_binary(env, term, &text) || !text.size || text.size >= size) return false;
  memcpy(name, text.data, text.size);
  name[text.size] = 0;
  return strlen(name) == text.size;
}

/* op(name, args, kwargs) :: {:ok, result, bytes} | {:collect, e} | {:error, e} */
ERL_NIF_TERM xt_nif_op(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char name[NAME_SIZE];
  xt_error error;
  xt_op_call call = {.name = name};
  xt_value args, *results = NULL;
  size_t count = 0;
  unsigned length;
  ERL_NIF_TERM result = xt_am_nil;
  if (!get_name(env, argv[0], name, sizeof name) || !enif_get_list_length(env, argv[1], &length) ||
      !enif_get_list_length(env, argv[2], &length))
    return enif_make_badarg(env);

  bool normal = enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER;
  bool view = named(name, view_names, sizeof view_names / sizeof *view_names);
  bool dirty = normal && !view && !named(name, pointwise_names, sizeof pointwise_names / sizeof *pointwise_names);
  decoder in = {.env = env, .elements = 1, .node_limit = normal ? BRIEF_NODES : SIZE_MAX, .error = &error};
  xt_status status = XT_STATUS_ok;
  if (!dirty) {
    status = decode(&in, argv[1], 0, &args);
    if (status == XT_STATUS_ok) status = decode_kwargs(&in, argv[2], &call);
    dirty = normal && (in.too_many || (!view && in.elements > BRIEF_ELEMENTS));
  }
  if (!dirty && status == XT_STATUS_ok) {
    call.args = args.list.items;
    call.arg_count = args.list.count;
    status = xt_torch->op(&call, &in.arena, &results, &count, &error);
  }
  for (size_t i = 0; !dirty && i < in.used_count && status == XT_STATUS_ok; i++) {
    status = xt_tensor_check_memory(in.used[i]->handle, &error);
    if (status != XT_STATUS_ok) drop_results(results, count);
  }
  for (size_t i = 0; i < in.used_count; i++) xt_tensor_leave(in.used[i]);
  if (!dirty && status == XT_STATUS_ok) result = make_results(env, results, count);
  xt_arena_free(&in.arena);
  if (dirty) return enif_schedule_nif(env, "op", XT_DIRTY_CPU, xt_nif_op, argc, argv);
  return status == XT_STATUS_ok ? xt_make_ok(env, result) : xt_make_error(env, &error);
}
