/* Converts nested Elixir lists to tensors, and tensors to lists. */
#include <stdio.h>
#include <string.h>

#include "core/base/element.h"
#include "core/memory/memory.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* Up to BRIEF_ELEMENTS the work takes microseconds and runs on a normal scheduler. */
enum { BRIEF_ELEMENTS = 256, MAX_CELLS = 1 << 30 };

/* ---- Lists to tensors ----
 *
 * Three passes: find_shape takes the shape from the first element of each level; scan finds the kind of number that
 * holds all elements and reports ragged lists and invalid terms with their indices; fill writes the values into the
 * tensor's memory. */

typedef enum {
  KIND_BOOL,
  KIND_INT,
  KIND_FLOAT,
  KIND_COMPLEX
} number_kind; /* each kind can represent the ones before it */

typedef struct {
  ErlNifEnv *env;
  int ndim;
  int64_t sizes[XT_MAX_DIMS];
  int64_t index[XT_MAX_DIMS]; /* the current position, for error messages */
  number_kind kind;
  xt_dtype dtype; /* the dtype that fill writes */
  char *data;     /* the next element */
  xt_error *error;
} nested;

/* Formats the current position down to the given depth: "[0][2]". */
static const char *position(const nested *list, int depth, char *text, size_t size) {
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < depth && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "[%lld]", (long long)list->index[i]);
  return text;
}

/* Takes the shape from the first element of each level. */
static xt_status find_shape(nested *list, ERL_NIF_TERM term) {
  unsigned length;
  ERL_NIF_TERM head, tail;
  while (enif_is_list(list->env, term)) {
    if (list->ndim == XT_MAX_DIMS)
      return xt_error_set(list->error, XT_STATUS_bad_argument, "the list has more than %d levels of nesting",
                          XT_MAX_DIMS);
    if (!enif_get_list_length(list->env, term, &length))
      return xt_error_set(list->error, XT_STATUS_bad_argument, "the list is improper: its tail is not a list");
    list->sizes[list->ndim++] = length;
    if (!enif_get_list_cell(list->env, term, &head, &tail)) break;
    term = head;
  }
  return XT_STATUS_ok;
}

static bool get_kind(nested *list, ERL_NIF_TERM term, number_kind *kind) {
  double re, im;
  if (enif_is_number(list->env, term)) {
    *kind = enif_get_double(list->env, term, &re) ? KIND_FLOAT : KIND_INT;
  } else if (term == xt_am_true || term == xt_am_false) {
    *kind = KIND_BOOL;
  } else if (xt_get_float(list->env, term, &re)) {
    *kind = KIND_FLOAT;
  } else if (xt_get_complex(list->env, term, &re, &im)) {
    *kind = KIND_COMPLEX;
  } else {
    return false;
  }
  return true;
}

static xt_status set_kind_error(nested *list, ERL_NIF_TERM term) {
  char at[256];
  position(list, list->ndim, at, sizeof at);
  if (enif_is_list(list->env, term))
    return xt_error_set(list->error, XT_STATUS_bad_argument,
                        "the list is ragged: element %s is a list, but its siblings are numbers", at);
  return xt_error_set(list->error, XT_STATUS_bad_argument,
                      "%s%s is not a number (integer, float, boolean, :nan, :infinity or :neg_infinity)",
                      list->ndim ? "element " : "the value", at);
}

/* Checks the lengths and the elements of all lists and finds the common kind of number. */
static xt_status scan(nested *list, ERL_NIF_TERM term, int depth) {
  char at[256];
  number_kind kind;
  if (depth == list->ndim) {
    if (!get_kind(list, term, &kind)) return set_kind_error(list, term);
    if (kind > list->kind) list->kind = kind;
    return XT_STATUS_ok;
  }
  unsigned length;
  if (!enif_get_list_length(list->env, term, &length))
    return xt_error_set(list->error, XT_STATUS_bad_argument,
                        "the list is ragged: element %s is not a list, but its siblings are lists of length %lld",
                        position(list, depth, at, sizeof at), (long long)list->sizes[depth]);
  if (length != list->sizes[depth])
    return xt_error_set(list->error, XT_STATUS_bad_argument,
                        "the list is ragged: element %s has length %u, but its siblings have length %lld",
                        position(list, depth, at, sizeof at), length, (long long)list->sizes[depth]);
  ERL_NIF_TERM head;
  for (list->index[depth] = 0; enif_get_list_cell(list->env, term, &head, &term); list->index[depth]++) {
    xt_status status = scan(list, head, depth + 1);
    if (status != XT_STATUS_ok) return status;
  }
  return XT_STATUS_ok;
}

/* Writes one element. */
static xt_status fill_element(nested *list, ERL_NIF_TERM term, xt_dtype target) {
  char at[256];
  double re = 0, im = 0;
  ErlNifSInt64 integer = 0;
  ErlNifUInt64 natural = 0;
  bool is_float = xt_get_float(list->env, term, &re), is_complex = xt_get_complex(list->env, term, &re, &im);
  xt_kind kind = xt_dtype_get(target)->kind;

  if (term == xt_am_true) {
    integer = 1;
  } else if (!is_float && !is_complex && term != xt_am_false && !enif_get_int64(list->env, term, &integer)) {
    if (target != XT_uint64 || !enif_get_uint64(list->env, term, &natural))
      return xt_error_set(list->error, XT_STATUS_bad_argument, "the integer at %s does not fit in %s",
                          position(list, list->ndim, at, sizeof at), xt_dtype_get(target)->name);
    integer = (int64_t)natural;
  } else if (!is_float && !is_complex && kind != XT_KIND_BOOL && !xt_element_int_fits(target, integer)) {
    return xt_error_set(list->error, XT_STATUS_bad_argument, "the integer %lld at %s does not fit in %s",
                        (long long)integer, position(list, list->ndim, at, sizeof at), xt_dtype_get(target)->name);
  }
  if (is_complex ? kind != XT_KIND_COMPLEX : is_float && (kind == XT_KIND_INT || kind == XT_KIND_UINT))
    return xt_error_set(
        list->error, XT_STATUS_bad_argument, "the %s at %s cannot be represented as %s; convert it first",
        is_complex ? "complex number" : "float", position(list, list->ndim, at, sizeof at), xt_dtype_get(target)->name);
  if (!is_float && !is_complex) re = (double)integer;

  switch (list->dtype) {
  case XT_bool: *list->data++ = is_float ? re != 0 : integer != 0; break;
  case XT_int64: memcpy(list->data, &integer, 8), list->data += 8; break;
  case XT_float64: memcpy(list->data, &re, 8), list->data += 8; break;
  case XT_float32: memcpy(list->data, &(float){(float)re}, 4), list->data += 4; break;
  default: memcpy(list->data, (double[2]){re, im}, 16), list->data += 16; break; /* complex128 */
  }
  return XT_STATUS_ok;
}

static xt_status fill(nested *list, ERL_NIF_TERM term, int depth, xt_dtype target) {
  ERL_NIF_TERM head;
  if (depth == list->ndim) return fill_element(list, term, target);
  for (list->index[depth] = 0; enif_get_list_cell(list->env, term, &head, &term); list->index[depth]++) {
    xt_status status = fill(list, head, depth + 1, target);
    if (status != XT_STATUS_ok) return status;
  }
  return XT_STATUS_ok;
}

/* The dtype in which the values are written. LibTorch converts from it to all other dtypes of the same kind. */
static xt_dtype staging_dtype(xt_dtype target) {
  switch (xt_dtype_get(target)->kind) {
  case XT_KIND_BOOL: return XT_bool;
  case XT_KIND_INT:
  case XT_KIND_UINT: return XT_int64;
  case XT_KIND_COMPLEX: return XT_complex128;
  default: return target == XT_float64 ? XT_float64 : XT_float32;
  }
}

static xt_status from_list(nested *list, ERL_NIF_TERM term, xt_dtype target, xt_device device, xt_tensor **out) {
  static const xt_dtype defaults[] = {XT_bool, XT_int64, XT_float32, XT_complex64};
  xt_tensor *staged = NULL;
  xt_status status = scan(list, term, 0);
  if (status != XT_STATUS_ok) return status;
  if (target == XT_DTYPE_COUNT) target = list->ndim && !list->sizes[list->ndim - 1] ? XT_float32 : defaults[list->kind];
  xt_kind kind = xt_dtype_get(target)->kind;
  if (kind == XT_KIND_QUANT || kind == XT_KIND_BITS)
    return xt_error_set(list->error, XT_STATUS_unsupported, "cannot create a tensor of %s from numbers",
                        xt_dtype_get(target)->name);
  list->dtype = staging_dtype(target);
  status = xt_torch->tensor_empty(list->dtype, list->ndim, list->sizes, &staged, list->error);
  if (status != XT_STATUS_ok) return status;
  list->data = staged->info.data;
  status = fill(list, term, 0, target);
  if (status == XT_STATUS_ok && list->dtype == target && device.type == XT_DEVICE_CPU) {
    *out = staged;
    return status;
  }
  if (status == XT_STATUS_ok) status = xt_torch->tensor_to(staged, target, device, out, list->error);
  xt_tensor_drop(staged);
  return status;
}

/* Checks the lengths of the first list of each level, to decide whether the list can be walked on a normal scheduler.
 */
static bool is_short(ErlNifEnv *env, ERL_NIF_TERM term) {
  ERL_NIF_TERM head, tail;
  int budget = BRIEF_ELEMENTS;
  for (int depth = 0; depth <= XT_MAX_DIMS && enif_get_list_cell(env, term, &head, &tail); depth++) {
    ERL_NIF_TERM first = head;
    while (budget-- > 0 && enif_get_list_cell(env, tail, &head, &tail)) continue;
    if (budget < 0) return false;
    term = first;
  }
  return true;
}

/* tensor(number | nested list, dtype | nil, device) :: {:ok, tensor, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_tensor(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_error error;
  xt_dtype dtype = XT_DTYPE_COUNT;
  xt_device device;
  xt_tensor *tensor = NULL;
  nested list = {.env = env, .error = &error};
  if ((argv[1] != xt_am_nil && !xt_get_dtype(env, argv[1], &dtype)) || !xt_get_device(env, argv[2], &device))
    return enif_make_badarg(env);
  bool normal = enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER;
  if (normal && !is_short(env, argv[0]))
    return enif_schedule_nif(env, "tensor", XT_DIRTY_CPU, xt_nif_tensor, argc, argv);
  xt_status status = find_shape(&list, argv[0]);
  double elements = 1;
  for (int i = 0; i < list.ndim; i++) elements *= (double)list.sizes[i];
  if (status == XT_STATUS_ok && (elements > BRIEF_ELEMENTS || device.type != XT_DEVICE_CPU) && normal)
    return enif_schedule_nif(env, "tensor", XT_DIRTY_CPU, xt_nif_tensor, argc, argv);
  if (status == XT_STATUS_ok) status = from_list(&list, argv[0], dtype, device, &tensor);
  return xt_make_tensor_result(env, status, tensor, &error);
}

/* ---- Tensors to lists ---- */

/* Builds the lists from their ends, so that no array of terms is needed. `end` moves backwards through the contiguous
 * data. */
static ERL_NIF_TERM make_list(ErlNifEnv *env, const xt_tensor_info *info, int depth, const char **end) {
  if (depth == info->ndim) {
    *end -= xt_dtype_get(info->dtype)->size;
    return xt_make_element(env, info->dtype, *end);
  }
  ERL_NIF_TERM list = enif_make_list(env, 0);
  for (int64_t i = 0; i < info->sizes[depth]; i++)
    list = enif_make_list_cell(env, make_list(env, info, depth + 1, end), list);
  return list;
}

/* Counts the list cells of the result. An empty tensor can have very many: {1000000, 0}. */
static double count_cells(const xt_tensor_info *info) {
  double cells = 1;
  for (int d = 0; d < info->ndim && info->sizes[d]; d++) cells *= (double)info->sizes[d];
  return cells;
}

static xt_status to_list(ErlNifEnv *env, xt_tensor *handle, ERL_NIF_TERM *out, xt_error *error) {
  xt_tensor *plain = NULL;
  double cells = count_cells(&handle->info);
  if (cells > MAX_CELLS)
    return xt_error_set(error, XT_STATUS_limit,
                        "a list of %.0f elements is too large; convert a slice of the tensor instead", cells);
  xt_status status = xt_torch->tensor_plain(handle, &plain, error);
  if (status != XT_STATUS_ok) return status;
  const char *end = (char *)plain->info.data + plain->info.span;
  *out = make_list(env, &plain->info, 0, &end);
  status = xt_tensor_check_memory(handle, error);
  xt_tensor_drop(plain);
  return status;
}

/* tensor_to_list(tensor) :: {:ok, number | nested list, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_tensor_to_list(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  xt_tensor *handle;
  ERL_NIF_TERM list = xt_am_nil;
  xt_error error;
  if (!xt_get_tensor(env, argv[0], &resource)) return enif_make_badarg(env);
  if (xt_tensor_take(resource, &handle, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  const xt_tensor_info *info = &handle->info;
  bool is_brief = count_cells(info) <= BRIEF_ELEMENTS && info->strides && info->device.type == XT_DEVICE_CPU;
  if (!is_brief && enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER) {
    xt_tensor_drop(handle);
    return enif_schedule_nif(env, "tensor_to_list", XT_DIRTY_CPU, xt_nif_tensor_to_list, argc, argv);
  }
  xt_status status = to_list(env, handle, &list, &error);
  xt_tensor_drop(handle);
  return xt_make_result(env, status, list, &error);
}
