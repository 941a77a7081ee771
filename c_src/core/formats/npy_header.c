#include "core/formats/npy_header.h"

#include <string.h>

#include "core/base/cursor.h"
#include "core/base/decimal.h"
#include "core/base/printable.h"

enum { VERSION_AT = 6, LENGTH_AT = 8, MAX_DIGITS = 18 };

typedef struct {
  const char *at, *end;
} text;

static xt_status invalid(const char *name, xt_error *error, const char *what) {
  return xt_error_set(error, XT_STATUS_corrupt, "invalid npy header of %s: %s", name, what);
}

xt_status xt_npy_header_size(const uint8_t *prefix, const char *name, size_t *size, xt_error *error) {
  unsigned major = prefix[VERSION_AT];
  if (memcmp(prefix, XT_NPY_MAGIC, VERSION_AT)) return invalid(name, error, "it does not begin with \\x93NUMPY");
  if (major < 1 || major > 3)
    return xt_error_set(error, XT_STATUS_unsupported, "%s has version %u of the npy format; 1 to 3 are supported", name,
                        major);
  size_t length_size = major == 1 ? 2 : 4, length = (size_t)xt_le(prefix + LENGTH_AT, length_size);
  if (length > XT_NPY_MAX_HEADER)
    return xt_error_set(error, XT_STATUS_limit, "the npy header of %s has %zu bytes; at most %d are supported", name,
                        length, XT_NPY_MAX_HEADER);
  *size = LENGTH_AT + length_size + length;
  return XT_STATUS_ok;
}

/* ---- Python literals ---- */

static void skip_space(text *t) {
  while (t->at < t->end && (*t->at == ' ' || (*t->at >= '\t' && *t->at <= '\r'))) t->at++;
}

static bool skip(text *t, const char *word) {
  size_t size = strlen(word);
  skip_space(t);
  if ((size_t)(t->end - t->at) < size || memcmp(t->at, word, size)) return false;
  t->at += size;
  return true;
}

/* Reads a string in single or double quotes, without escapes. */
static bool read_string(text *t, const char **string, size_t *size) {
  skip_space(t);
  if (t->at == t->end || (*t->at != '\'' && *t->at != '"')) return false;
  char quote = *t->at++;
  *string = t->at;
  while (t->at < t->end && *t->at != quote && *t->at != '\\' && *t->at != '\n') t->at++;
  if (t->at == t->end || *t->at != quote) return false;
  *size = (size_t)(t->at++ - *string);
  return true;
}

/* Python 2 writes an L after large integers. */
static bool read_integer(text *t, int64_t *value) {
  skip_space(t);
  const char *start = t->at;
  for (*value = 0; t->at < t->end && *t->at >= '0' && *t->at <= '9' && t->at - start < MAX_DIGITS; t->at++)
    *value = *value * 10 + (*t->at - '0');
  if (t->at == start || (t->at < t->end && *t->at >= '0' && *t->at <= '9')) return false;
  if (t->at < t->end && *t->at == 'L') t->at++;
  return true;
}

/* (), (3,) or (2, 3) */
static bool read_shape(text *t, xt_npy_header *out) {
  if (!skip(t, "(")) return false;
  bool comma = true;
  while (!skip(t, ")")) {
    if (out->ndim == XT_MAX_DIMS || !comma || !read_integer(t, &out->sizes[out->ndim++])) return false;
    comma = skip(t, ",");
  }
  return out->ndim != 1 || comma; /* (3) is not a tuple */
}

static bool read_bool(text *t, bool *value) {
  *value = skip(t, "True");
  return *value || skip(t, "False");
}

/* ---- Types ---- */

static xt_status refuse_type(const char *name, const char *what, const char *instead, xt_error *error) {
  return xt_error_set(error, XT_STATUS_unsupported, "%s has elements that are %s, which tensors cannot have; %s", name,
                      what, instead);
}

static xt_status read_type(const char *code, size_t size, const char *name, xt_npy_header *out, xt_error *error) {
  char order = size ? *code : 0;
  if (order == '<' || order == '>' || order == '=' || order == '|') code++, size--;
  out->dtype = size == 1 && *code == '?' ? XT_bool : xt_dtype_from_numpy(code, size);
  out->big_endian = order == '>' && xt_dtype_get(out->dtype == XT_DTYPE_COUNT ? XT_bool : out->dtype)->size > 1;
  if (out->dtype != XT_DTYPE_COUNT && size) return XT_STATUS_ok;
  switch (size ? *code : 0) {
  case 'O':
    return refuse_type(name, "Python objects (a pickle)", "it is never executed; save the arrays separately", error);
  case 'U':
  case 'S':
  case 'a': return refuse_type(name, "strings", "save them as a list", error);
  case 'M':
  case 'm': return refuse_type(name, "dates or durations", "save array.astype('int64')", error);
  case 'V':
    return refuse_type(name, "raw bytes (void), as numpy saves bfloat16",
                       "save array.view('uint8') or 'uint16', or use safetensors", error);
  default: break;
  }
  return xt_error_set(error, XT_STATUS_unsupported,
                      "%s has elements of numpy's type %s, which tensors cannot have; convert it with astype", name,
                      xt_printable_text(code, size).text);
}

/* Refuses what is not the string of a plain type. */
static xt_status read_descr(text *t, const char *name, xt_npy_header *out, xt_error *error) {
  const char *code;
  size_t size;
  skip_space(t);
  if (t->at < t->end && (*t->at == '[' || *t->at == '('))
    return refuse_type(name, "structures (a structured dtype)", "save each field as an array of its own", error);
  if (!read_string(t, &code, &size)) return invalid(name, error, "expected a string as descr");
  return read_type(code, size, name, out, error);
}

static xt_status count_bytes(const char *name, xt_npy_header *h, xt_error *error) {
  h->bytes = xt_dtype_get(h->dtype)->size;
  for (uint32_t d = 0; d < h->ndim; d++)
    if (h->sizes[d] == 0) return h->bytes = 0, XT_STATUS_ok;
  for (uint32_t d = 0; d < h->ndim; d++)
    if (__builtin_mul_overflow(h->bytes, (uint64_t)h->sizes[d], &h->bytes) || h->bytes > INT64_MAX)
      return invalid(name, error, "the shape overflows 64 bits");
  return XT_STATUS_ok;
}

/* ---- The header ---- */

static xt_status read_member(text *t, const char *name, unsigned *seen, xt_npy_header *out, xt_error *error) {
  enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
  const char *key;
  size_t size;
  xt_status status = XT_STATUS_ok;
  if (!read_string(t, &key, &size) || !skip(t, ":")) return invalid(name, error, "expected a key of the dict");
  unsigned member = size == 5 && !memcmp(key, "descr", 5)             ? DESCR
                    : size == 13 && !memcmp(key, "fortran_order", 13) ? ORDER
                    : size == 5 && !memcmp(key, "shape", 5)           ? SHAPE
                                                                      : 0;
  if (!member || *seen & member) return invalid(name, error, "expected each of descr, fortran_order and shape once");
  *seen |= member;
  if (member == DESCR) status = read_descr(t, name, out, error);
  else if (member == ORDER && !read_bool(t, &out->fortran_order))
    status = invalid(name, error, "expected True or False as fortran_order");
  else if (member == SHAPE && !read_shape(t, out)) status = invalid(name, error, "expected a tuple of sizes as shape");
  return status;
}

xt_status xt_npy_read_header(const uint8_t *data, size_t size, const char *name, xt_npy_header *out, xt_error *error) {
  enum { ALL = 7 };
  size_t start = data[VERSION_AT] == 1 ? LENGTH_AT + 2 : LENGTH_AT + 4;
  text t = {(const char *)data + start, (const char *)data + size};
  unsigned seen = 0;
  *out = (xt_npy_header){0};
  if (!skip(&t, "{")) return invalid(name, error, "expected a dict");
  for (bool comma = true; !skip(&t, "}"); comma = skip(&t, ",")) {
    if (!comma) return invalid(name, error, "expected a comma or the end of the dict");
    xt_status status = read_member(&t, name, &seen, out, error);
    if (status != XT_STATUS_ok) return status;
  }
  skip_space(&t);
  if (seen != ALL || t.at != t.end)
    return invalid(name, error, "expected descr, fortran_order and shape, and nothing else");
  return count_bytes(name, out, error);
}

/* ---- Writing ---- */

void xt_npy_write_header(xt_buffer *out, xt_dtype dtype, const int64_t *sizes, int ndim) {
  const xt_dtype_info *info = xt_dtype_get(dtype);
  size_t start = out->size;
  xt_buffer_put(out, XT_NPY_MAGIC "\1\0", LENGTH_AT);
  xt_buffer_le(out, 0, 2); /* the length, set below */
  xt_buffer_text(out, info->size == 1 ? "{'descr': '|" : "{'descr': '<");
  xt_buffer_text(out, info->numpy);
  xt_buffer_text(out, "', 'fortran_order': False, 'shape': (");
  for (int d = 0; d < ndim; d++) {
    char digits[XT_DECIMAL_DIGITS];
    xt_buffer_put(out, digits, xt_decimal(digits, (uint64_t)sizes[d]));
    if (d + 1 < ndim || ndim == 1) xt_buffer_put(out, ndim == 1 ? "," : ", ", ndim == 1 ? 1 : 2);
  }
  xt_buffer_text(out, "), }");
  while ((out->size - start + 1) % XT_NPY_ALIGNMENT && !out->failed) xt_buffer_byte(out, ' ');
  xt_buffer_byte(out, '\n');
  if (out->failed) return;
  size_t length = out->size - start - LENGTH_AT - 2;
  out->data[start + LENGTH_AT] = (uint8_t)length;
  out->data[start + LENGTH_AT + 1] = (uint8_t)(length >> 8);
}
