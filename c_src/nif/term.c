#include "nif/term.h"

#include <math.h>
#include <string.h>

#include "core/base/element.h"
#include "core/base/printable.h"
#include "core/base/utf8.h"
#include "core/memory/memory.h"

#define XT_DEFINE_ATOM(name) ERL_NIF_TERM xt_am_##name;
#define XT_DEFINE_MODULE(name, text) ERL_NIF_TERM xt_am_##name;
XT_ATOMS(XT_DEFINE_ATOM)
XT_MODULES(XT_DEFINE_MODULE)
#undef XT_DEFINE_ATOM
#undef XT_DEFINE_MODULE

enum { NAME_SIZE = 256 }; /* the longest atom, in Latin-1 */

/* Smaller allocations are reported as 0: the term of the tensor alone makes the heap grow. */
enum { MIN_REPORTED_BYTES = 4096 };

enum { SMALL_TEXT = 4096 };

static ERL_NIF_TERM dtype_atoms[XT_DTYPE_COUNT];
static ERL_NIF_TERM status_atoms[XT_STATUS_COUNT];

void xt_term_load(ErlNifEnv *env) {
#define XT_LOAD_ATOM(name) xt_am_##name = enif_make_atom(env, #name);
#define XT_LOAD_MODULE(name, text) xt_am_##name = enif_make_atom(env, text);
  XT_ATOMS(XT_LOAD_ATOM)
  XT_MODULES(XT_LOAD_MODULE)
#undef XT_LOAD_ATOM
#undef XT_LOAD_MODULE
  for (int i = 0; i < XT_DTYPE_COUNT; i++) dtype_atoms[i] = enif_make_atom(env, xt_dtype_get((xt_dtype)i)->name);
  for (int i = 0; i < XT_STATUS_COUNT; i++) status_atoms[i] = enif_make_atom(env, xt_status_name((xt_status)i));
}

bool xt_get_bool(ErlNifEnv *env, ERL_NIF_TERM term, bool *out) {
  (void)env;
  *out = term == xt_am_true;
  return term == xt_am_true || term == xt_am_false;
}

bool xt_get_dtype(ErlNifEnv *env, ERL_NIF_TERM term, xt_dtype *out) {
  char name[NAME_SIZE];
  const ERL_NIF_TERM *pair;
  int arity, bits;
  for (int i = 0; i < XT_DTYPE_COUNT; i++)
    if (dtype_atoms[i] == term) return *out = (xt_dtype)i, true;
  if (enif_get_atom(env, term, name, sizeof name, ERL_NIF_LATIN1)) *out = xt_dtype_from_name(name);
  else if (enif_get_tuple(env, term, &arity, &pair) && arity == 2 &&
           enif_get_atom(env, pair[0], name, sizeof name, ERL_NIF_LATIN1) && enif_get_int(env, pair[1], &bits))
    *out = xt_dtype_from_nx(name, bits);
  else return false;
  return *out != XT_DTYPE_COUNT;
}

bool xt_get_cast(ErlNifEnv *env, ERL_NIF_TERM term, xt_dtype *out) {
  ERL_NIF_TERM module, dtype;
  return enif_get_map_value(env, term, xt_am___struct__, &module) && module == xt_am_module_cast &&
         enif_get_map_value(env, term, xt_am_dtype, &dtype) && xt_get_dtype(env, dtype, out);
}

bool xt_get_device(ErlNifEnv *env, ERL_NIF_TERM term, xt_device *out) {
  const ERL_NIF_TERM *pair;
  int arity, index = -1;
  ERL_NIF_TERM type = term;
  if (enif_get_tuple(env, term, &arity, &pair)) {
    if (arity != 2 || !enif_get_int(env, pair[1], &index) || index < 0 || index > 127) return false;
    type = pair[0];
  }
  char name[XT_DEVICE_NAME];
  *out = (xt_device){XT_DEVICE_CPU, index};
  if (type == xt_am_cpu) return true;
  if (!enif_get_atom(env, type, name, sizeof name, ERL_NIF_LATIN1)) return false;
  out->type = xt_device_type_from_name(name);
  return out->type != XT_DEVICE_OTHER;
}

bool xt_get_dims(ErlNifEnv *env, ERL_NIF_TERM term, int64_t *dims, int *ndim) {
  const ERL_NIF_TERM *items;
  ErlNifSInt64 dim;
  *ndim = 0;
  if (enif_get_tuple(env, term, ndim, &items)) {
    if (*ndim > XT_MAX_DIMS) return false;
    for (int i = 0; i < *ndim; i++) {
      if (!enif_get_int64(env, items[i], &dim)) return false;
      dims[i] = dim;
    }
    return true;
  }
  ERL_NIF_TERM head;
  while (enif_get_list_cell(env, term, &head, &term)) {
    if (*ndim == XT_MAX_DIMS || !enif_get_int64(env, head, &dim)) return false;
    dims[(*ndim)++] = dim;
  }
  return enif_is_empty_list(env, term);
}

bool xt_get_float(ErlNifEnv *env, ERL_NIF_TERM term, double *out) {
  if (enif_get_double(env, term, out)) return true;
  if (term == xt_am_nan) *out = NAN;
  else if (term == xt_am_infinity) *out = INFINITY;
  else if (term == xt_am_neg_infinity) *out = -INFINITY;
  else return false;
  return true;
}

static bool get_part(ErlNifEnv *env, ERL_NIF_TERM term, double *out) {
  ErlNifSInt64 integer;
  if (!enif_get_int64(env, term, &integer)) return xt_get_float(env, term, out);
  *out = (double)integer;
  return true;
}

bool xt_get_complex(ErlNifEnv *env, ERL_NIF_TERM term, double *re, double *im) {
  ERL_NIF_TERM module, part;
  return enif_get_map_value(env, term, xt_am___struct__, &module) && module == xt_am_module_complex &&
         enif_get_map_value(env, term, xt_am_re, &part) && get_part(env, part, re) &&
         enif_get_map_value(env, term, xt_am_im, &part) && get_part(env, part, im);
}

bool xt_get_element(ErlNifEnv *env, ERL_NIF_TERM term, xt_dtype dtype, uint8_t bytes[16]) {
  const xt_dtype_info *info = xt_dtype_get(dtype);
  ErlNifSInt64 integer = 0;
  ErlNifUInt64 natural = 0;
  double re = 0, im = 0;
  bool boolean;
  memset(bytes, 0, 16);
  switch (info->kind) {
  case XT_KIND_BOOL:
    if (!xt_get_bool(env, term, &boolean)) return false;
    bytes[0] = boolean;
    return true;
  case XT_KIND_UINT:
    if (dtype == XT_uint64 && enif_get_uint64(env, term, &natural)) return memcpy(bytes, &natural, 8), true;
    /* fall through */
  case XT_KIND_INT:
    if (!enif_get_int64(env, term, &integer) || !xt_element_int_fits(dtype, integer)) return false;
    memcpy(bytes, &integer, info->size);
    return true;
  case XT_KIND_COMPLEX:
    if (!xt_get_complex(env, term, &re, &im)) return false;
    if (info->size == 16) memcpy(bytes, (double[]){re, im}, 16);
    else memcpy(bytes, (float[]){(float)re, (float)im}, 8);
    return true;
  default:
    if (enif_get_int64(env, term, &integer)) re = (double)integer;
    else if (!xt_get_float(env, term, &re)) return false;
    if (info->size == 8) memcpy(bytes, &re, 8);
    else if (info->size == 4) memcpy(bytes, &(float){(float)re}, 4);
    else memcpy(bytes, &(uint16_t){xt_element_half(re)}, 2);
    return true;
  }
}

bool xt_get_path(ErlNifEnv *env, ERL_NIF_TERM term, char path[XT_PATH_SIZE]) {
  ErlNifBinary text;
  if (!enif_inspect_binary(env, term, &text) || text.size >= XT_PATH_SIZE || memchr(text.data, 0, text.size))
    return false;
  memcpy(path, text.data, text.size);
  path[text.size] = 0;
  return true;
}

ERL_NIF_TERM xt_make_bool(bool value) { return value ? xt_am_true : xt_am_false; }

ERL_NIF_TERM xt_make_float(ErlNifEnv *env, double value) {
  if (isnan(value)) return xt_am_nan;
  if (isinf(value)) return value > 0 ? xt_am_infinity : xt_am_neg_infinity;
  return enif_make_double(env, value);
}

ERL_NIF_TERM xt_make_complex(ErlNifEnv *env, double re, double im) {
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_re, xt_am_im};
  ERL_NIF_TERM values[] = {xt_am_module_complex, xt_make_float(env, re), xt_make_float(env, im)};
  return xt_make_struct(env, keys, values, 3);
}

ERL_NIF_TERM xt_make_element(ErlNifEnv *env, xt_dtype dtype, const void *data) {
  xt_element element = xt_element_read(dtype, data);
  switch (element.kind) {
  case XT_ELEMENT_FLOAT: return xt_make_float(env, element.re);
  case XT_ELEMENT_INT: return enif_make_int64(env, element.i);
  case XT_ELEMENT_UINT: return enif_make_uint64(env, element.u);
  case XT_ELEMENT_BOOL: return xt_make_bool(element.u);
  default: return xt_make_complex(env, element.re, element.im);
  }
}

ERL_NIF_TERM xt_make_dtype(xt_dtype dtype) { return dtype_atoms[dtype]; }

ERL_NIF_TERM xt_make_device(ErlNifEnv *env, xt_device device) {
  switch (device.type) {
  case XT_DEVICE_CPU: return xt_am_cpu;
  case XT_DEVICE_MPS:
  case XT_DEVICE_META:
  case XT_DEVICE_OTHER: return enif_make_atom(env, xt_device_type_name(device.type));
  default:
    return enif_make_tuple2(env, enif_make_atom(env, xt_device_type_name(device.type)),
                            enif_make_int(env, device.index));
  }
}

ERL_NIF_TERM xt_make_dims(ErlNifEnv *env, const int64_t *dims, int ndim) {
  ERL_NIF_TERM items[XT_MAX_DIMS];
  for (int i = 0; i < ndim; i++) items[i] = enif_make_int64(env, dims[i]);
  return enif_make_tuple_from_array(env, items, (unsigned)ndim);
}

ERL_NIF_TERM xt_make_dim_list(ErlNifEnv *env, const int64_t *dims, int ndim) {
  ERL_NIF_TERM items[XT_MAX_DIMS];
  for (int i = 0; i < ndim; i++) items[i] = enif_make_int64(env, dims[i]);
  return enif_make_list_from_array(env, items, (unsigned)ndim);
}

ERL_NIF_TERM xt_make_text(ErlNifEnv *env, const char *text, size_t size) {
  ERL_NIF_TERM term;
  ErlNifBinary large;
  if (size <= SMALL_TEXT) {
    unsigned char *data = enif_make_new_binary(env, size, &term);
    if (size) memcpy(data, text, size);
    return term;
  }
  /* enif_make_new_binary aborts the VM if there is not enough memory, and the size may come from a file. */
  if (!enif_alloc_binary(size, &large)) return xt_am_nil;
  memcpy(large.data, text, size);
  return enif_make_binary(env, &large);
}

ERL_NIF_TERM xt_make_struct(ErlNifEnv *env, const ERL_NIF_TERM *keys, const ERL_NIF_TERM *values, size_t count) {
  ERL_NIF_TERM map;
  enif_make_map_from_arrays(env, (ERL_NIF_TERM *)keys, (ERL_NIF_TERM *)values, count, &map);
  return map;
}

ERL_NIF_TERM xt_make_ok(ErlNifEnv *env, ERL_NIF_TERM value) {
  int64_t bytes = xt_memory_taken();
  return enif_make_tuple3(env, xt_am_ok, value, enif_make_int64(env, bytes < MIN_REPORTED_BYTES ? 0 : bytes));
}

/* LibTorch repeats arguments in its messages as they are. */
static ERL_NIF_TERM make_message(ErlNifEnv *env, const char *message) {
  size_t size = strlen(message);
  if (xt_utf8_check((const uint8_t *)message, size) == XT_UTF8_VALID) return xt_make_text(env, message, size);
  xt_printable printable = xt_printable_text(message, size);
  return xt_make_text(env, printable.text, strlen(printable.text));
}

static ERL_NIF_TERM make_exception(ErlNifEnv *env, const xt_error *error) {
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am___exception__, xt_am_reason, xt_am_message,
                         xt_am_path,       xt_am_offset,        xt_am_result};
  ERL_NIF_TERM values[] = {xt_am_module_error,
                           xt_am_true,
                           status_atoms[error->status],
                           make_message(env, error->message),
                           xt_am_nil,
                           error->offset < 0 ? xt_am_nil : enif_make_int64(env, error->offset),
                           xt_am_nil};
  return xt_make_struct(env, keys, values, 7);
}

ERL_NIF_TERM xt_make_error(ErlNifEnv *env, const xt_error *error) {
  xt_memory_taken(); /* resets the counter: a failed call has freed its memory */
  return enif_make_tuple2(env, error->collect ? xt_am_collect : xt_am_error, make_exception(env, error));
}

ERL_NIF_TERM xt_raise_error(ErlNifEnv *env, const xt_error *error) {
  return enif_raise_exception(env, make_exception(env, error));
}

ERL_NIF_TERM xt_make_failure(ErlNifEnv *env, xt_status status, const char *message) {
  xt_error error;
  xt_error_set(&error, status, "%s", message);
  return xt_make_error(env, &error);
}

ERL_NIF_TERM xt_make_result(ErlNifEnv *env, xt_status status, ERL_NIF_TERM value, const xt_error *error) {
  return status == XT_STATUS_ok ? xt_make_ok(env, value) : xt_make_error(env, error);
}
