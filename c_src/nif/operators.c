/* Calls any operator by name: converts terms to values, and results to terms. */
#include <math.h>
#include <string.h>

#include "core/memory/memory.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* ---- Choice of the scheduler ----
 *
 * Switching to a dirty scheduler costs some microseconds, more than many small operators take. So calls that are known
 * to be short stay on the normal scheduler: operators that only create a view, for tensors of any size, and pointwise
 * operators while the broadcast result has at most BRIEF_ELEMENTS elements. All other calls run on a dirty scheduler.
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

static bool is_in(const char *name, const char *const *names, size_t count) {
  if (!strncmp(name, "aten::", 6)) name += 6;
  size_t length = strcspn(name, "."); /* ignores the overload */
  for (size_t i = 0; i < count; i++)
    if (strlen(names[i]) == length && !memcmp(names[i], name, length)) return true;
  return false;
}

/* ---- Terms to values ---- */

typedef struct {
  ErlNifEnv *env;
  xt_arena arena;
  xt_tensor_resource **entered; /* the tensors to leave after the call */
  size_t entered_count, entered_room;
  size_t nodes, node_limit; /* items of lists and tuples */
  double elements;          /* the product of the element counts of all tensors: no broadcast is larger */
  bool too_long;            /* node_limit was exceeded */
  xt_error *error;
} decoder;

static xt_status invalid(decoder *in, const char *message) {
  return xt_error_set(in->error, XT_STATUS_bad_argument, "%s", message);
}

static xt_status no_memory(decoder *in) {
  return xt_error_set(in->error, XT_STATUS_no_memory, "out of memory while decoding the arguments");
}

/* Not an error: a call that is too long for a normal scheduler is decoded again on a dirty one. */
static xt_status too_long(decoder *in) {
  in->too_long = true;
  return invalid(in, "too many arguments");
}

/* Counts up to the node limit only. Returns false for an improper list. */
static bool get_length(decoder *in, ERL_NIF_TERM list, size_t *length) {
  ERL_NIF_TERM head;
  *length = 0;
  while (*length <= in->node_limit && enif_get_list_cell(in->env, list, &head, &list)) ++*length;
  return *length > in->node_limit || enif_is_empty_list(in->env, list);
}

static xt_status decode(decoder *in, ERL_NIF_TERM term, int depth, xt_value *out);

static xt_status decode_tensor(decoder *in, xt_tensor_resource *resource, xt_value *out) {
  if (!xt_arena_reserve(&in->arena, &in->entered, &in->entered_room, in->entered_count + 1, sizeof resource))
    return no_memory(in);
  xt_status status = xt_tensor_enter(resource, in->error);
  if (status != XT_STATUS_ok) return status;
  in->entered[in->entered_count++] = resource;
  /* calls with sparse tensors, or with devices that may block, are never brief */
  const xt_tensor_info *info = &resource->handle->info;
  bool brief = info->strides && (info->device.type == XT_DEVICE_CPU || info->device.type == XT_DEVICE_META);
  in->elements *= brief ? (double)info->numel : INFINITY;
  out->kind = XT_VALUE_TENSOR;
  out->tensor = resource->handle;
  return XT_STATUS_ok;
}

static xt_status decode_name(decoder *in, ERL_NIF_TERM atom, xt_value *out) {
  char name[NAME_SIZE];
  if (!enif_get_atom(in->env, atom, name, sizeof name, ERL_NIF_LATIN1))
    return invalid(in, "an argument is an atom with characters outside Latin-1");
  out->kind = XT_VALUE_NAME;
  out->name.text = xt_arena_text(&in->arena, name, strlen(name));
  return out->name.text ? XT_STATUS_ok : no_memory(in);
}

/* Decodes the elements of a list, or of a tuple if `items` is not NULL. */
static xt_status decode_items(decoder *in, ERL_NIF_TERM list, const ERL_NIF_TERM *items, size_t count, int depth,
                              xt_value *out) {
  ERL_NIF_TERM head;
  if (depth == MAX_DEPTH) return invalid(in, "an argument has too many levels of nesting");
  in->nodes += count;
  if (in->nodes > in->node_limit) return too_long(in);
  out->kind = XT_VALUE_LIST;
  out->list.count = count;
  out->list.items = xt_arena_alloc(&in->arena, count, sizeof *out->list.items);
  if (!out->list.items) return no_memory(in);
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
  return decode_items(in, 0, items, (size_t)arity, depth, out);
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
    if (!enif_get_int64(in->env, term, &integer)) return invalid(in, "an integer does not fit in 64 bits");
    out->kind = XT_VALUE_INT;
    out->integer = integer;
    return XT_STATUS_ok;
  case ERL_NIF_TERM_TYPE_FLOAT:
    out->kind = XT_VALUE_FLOAT;
    enif_get_double(in->env, term, &out->number);
    return XT_STATUS_ok;
  case ERL_NIF_TERM_TYPE_BITSTRING:
    if (!enif_inspect_binary(in->env, term, &binary))
      return invalid(in, "an argument is a bitstring, expected a binary");
    if (in->node_limit != SIZE_MAX && binary.size > BRIEF_TEXT) return too_long(in);
    out->kind = XT_VALUE_TEXT;
    out->text.data = xt_arena_text(&in->arena, (char *)binary.data, binary.size);
    out->text.size = binary.size;
    return out->text.data ? XT_STATUS_ok : no_memory(in);
  case ERL_NIF_TERM_TYPE_LIST:
    if (!get_length(in, term, &length)) return invalid(in, "an argument is an improper list");
    return decode_items(in, term, NULL, length, depth, out);
  case ERL_NIF_TERM_TYPE_TUPLE:
    enif_get_tuple(in->env, term, &arity, &items);
    return decode_tuple(in, items, arity, depth, out);
  default:
    if (xt_get_tensor(in->env, term, &resource)) return decode_tensor(in, resource, out);
    out->kind = XT_VALUE_COMPLEX;
    if (xt_get_complex(in->env, term, &out->complex.re, &out->complex.im)) return XT_STATUS_ok;
    return invalid(in, "an argument is not a tensor, number, boolean, string, atom, list or tuple");
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
  if (!kwargs) return no_memory(in);
  for (unsigned i = 0; i < length; i++) {
    enif_get_list_cell(in->env, list, &head, &list);
    if (!enif_get_tuple(in->env, head, &arity, &pair) || arity != 2)
      return invalid(in, "keyword arguments must be {name, value} pairs");
    if (enif_get_atom(in->env, pair[0], name, sizeof name, ERL_NIF_LATIN1))
      kwargs[i].name = xt_arena_text(&in->arena, name, strlen(name));
    else if (enif_inspect_binary(in->env, pair[0], &key))
      kwargs[i].name = xt_arena_text(&in->arena, (char *)key.data, key.size);
    else return invalid(in, "the name of a keyword argument must be an atom or a string");
    if (!kwargs[i].name) return no_memory(in);
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
  case XT_VALUE_NAME: return enif_make_atom(env, value->name.text); /* a dtype */
  case XT_VALUE_TENSOR: return xt_make_tensor(env, value->tensor);
  case XT_VALUE_LIST: return make_list(env, value->list.items, value->list.count);
  default: return xt_am_nil;
  }
}

/* Returns :ok for no result, the result itself for one, and a tuple for several. */
static ERL_NIF_TERM make_results(ErlNifEnv *env, const xt_value *results, size_t count) {
  ERL_NIF_TERM terms[MAX_RESULTS];
  if (count == 0) return xt_am_ok;
  if (count == 1) return make_value(env, results);
  if (count > MAX_RESULTS) return make_list(env, results, count); /* no known operator returns that many */
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

/* Decodes the arguments. The decoder's tensors are entered also on failure. */
static xt_status decode_call(decoder *in, ERL_NIF_TERM arg_list, ERL_NIF_TERM kwarg_list, xt_op_call *call) {
  xt_value args;
  xt_status status = decode(in, arg_list, 0, &args);
  if (status == XT_STATUS_ok) status = decode_kwargs(in, kwarg_list, call);
  if (status != XT_STATUS_ok) return status;
  call->args = args.list.items;
  call->arg_count = args.list.count;
  return XT_STATUS_ok;
}

/* Calls the operator and makes the term of its results. */
static xt_status call_op(decoder *in, const xt_op_call *call, ERL_NIF_TERM *out) {
  xt_value *results = NULL;
  size_t count = 0;
  xt_status status = xt_torch->op(call, &in->arena, &results, &count, in->error);
  if (status != XT_STATUS_ok) return status;
  for (size_t i = 0; i < in->entered_count && status == XT_STATUS_ok; i++)
    status = xt_tensor_check_memory(in->entered[i]->handle, in->error);
  if (status == XT_STATUS_ok) *out = make_results(in->env, results, count);
  else drop_results(results, count);
  return status;
}

static bool is_view(const char *name) { return is_in(name, view_names, sizeof view_names / sizeof *view_names); }

static bool is_pointwise(const char *name) {
  return is_in(name, pointwise_names, sizeof pointwise_names / sizeof *pointwise_names);
}

/* op(name, args, kwargs) :: {:ok, result, bytes} | {:collect, e} | {:error, e} */
ERL_NIF_TERM xt_nif_op(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char name[NAME_SIZE];
  xt_error error;
  xt_op_call call = {.name = name};
  unsigned length;
  ERL_NIF_TERM result = xt_am_nil;
  if (!get_name(env, argv[0], name, sizeof name) || !enif_get_list_length(env, argv[1], &length) ||
      !enif_get_list_length(env, argv[2], &length))
    return enif_make_badarg(env);
  bool normal = enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER, view = is_view(name);
  bool reschedule = normal && !view && !is_pointwise(name);
  if (!reschedule) {
    decoder in = {.env = env, .elements = 1, .node_limit = normal ? BRIEF_NODES : SIZE_MAX, .error = &error};
    xt_status status = decode_call(&in, argv[1], argv[2], &call);
    reschedule = normal && (in.too_long || (!view && in.elements > BRIEF_ELEMENTS));
    if (status == XT_STATUS_ok && !reschedule) status = call_op(&in, &call, &result);
    for (size_t i = 0; i < in.entered_count; i++) xt_tensor_leave(in.entered[i]);
    xt_arena_free(&in.arena);
    if (!reschedule) return xt_make_result(env, status, result, &error);
  }
  return enif_schedule_nif(env, "op", XT_DIRTY_CPU, xt_nif_op, argc, argv);
}
