/* Opens a safetensors file. */
#include "core/base/printable.h"
#include "core/formats/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cursor.h"
#include "core/formats/json.h"

enum { START, HEADER };
enum { USUAL_SIZE = 72 }; /* typical length of a tensor's description: the first guess of the number of tensors */
enum { PREFIX = XT_SAFETENSORS_PREFIX, MAX_HEADER = XT_SAFETENSORS_MAX_HEADER };

typedef struct {
  uint8_t *header;
  uint64_t header_size;
} work;

/* The part of the file after the header. */
typedef struct {
  uint64_t at, size;
} data_range;

/* The description of a tensor in the header. */
typedef struct {
  xt_json_string name, dtype;
  int64_t sizes[XT_MAX_DIMS], begin, end;
  uint32_t ndim;
  bool has_dtype, has_shape, has_offsets;
} tensor_header;

static bool equals(xt_json_string text, const char *literal) {
  return strlen(literal) == text.size && !memcmp(text.data, literal, text.size);
}

static xt_status corrupt(const tensor_header *t, xt_error *error, const char *what) {
  return xt_error_at(error, XT_STATUS_corrupt, PREFIX, "invalid safetensors header: tensor %s %s",
                     xt_printable_text(t->name.data, t->name.size).text, what);
}

/* ---- JSON ---- */

static bool read_shape(xt_json *j, tensor_header *t) {
  t->ndim = 0;
  if (!xt_json_array(j)) return false;
  while (xt_json_item(j)) {
    if (t->ndim == XT_MAX_DIMS) return xt_json_fail(j, "a tensor has " XT_TOO_MANY_DIMS);
    if (!xt_json_integer(j, &t->sizes[t->ndim])) return false;
    if (t->sizes[t->ndim++] < 0) return xt_json_fail(j, "a size in a shape is negative");
  }
  return !j->wrong;
}

static bool read_offsets(xt_json *j, tensor_header *t) {
  return xt_json_array(j) && xt_json_item(j) && xt_json_integer(j, &t->begin) && xt_json_item(j) &&
         xt_json_integer(j, &t->end) && !xt_json_item(j) && !j->wrong;
}

/* ---- Fast path ----
 *
 * Most writers use the form {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]} without white space. A description in
 * any other form, valid or not, is read again from its beginning by the general JSON parser. */

static bool skip_text(const uint8_t **at, const uint8_t *end, const char *text, size_t size) {
  if ((size_t)(end - *at) < size || memcmp(*at, text, size)) return false;
  *at += size;
  return true;
}

/* Reads up to 18 digits without a leading zero. */
static bool read_number(const uint8_t **at, const uint8_t *end, int64_t *value) {
  const uint8_t *start = *at;
  int64_t number = 0;
  while (*at < end && **at >= '0' && **at <= '9' && *at - start < 18) number = number * 10 + (*(*at)++ - '0');
  *value = number;
  return *at > start && (*start != '0' || *at == start + 1) && *at < end && (**at < '0' || **at > '9');
}

static bool read_compact(xt_json *j, tensor_header *t) {
  const uint8_t *at = j->data + j->at, *end = j->data + j->size;
  if (!skip_text(&at, end, "{\"dtype\":\"", 10)) return false;
  t->dtype.data = (const char *)at;
  while (at < end && ((*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9') || *at == '_')) at++;
  t->dtype.size = (size_t)(at - (const uint8_t *)t->dtype.data);
  if (!skip_text(&at, end, "\",\"shape\":[", 11)) return false;
  t->ndim = 0;
  while (at < end && *at != ']') {
    if (t->ndim == XT_MAX_DIMS || (t->ndim && !skip_text(&at, end, ",", 1))) return false;
    if (!read_number(&at, end, &t->sizes[t->ndim++])) return false;
  }
  if (!skip_text(&at, end, "],\"data_offsets\":[", 18) || !read_number(&at, end, &t->begin) ||
      !skip_text(&at, end, ",", 1) || !read_number(&at, end, &t->end) || !skip_text(&at, end, "]}", 2))
    return false;
  j->at = (size_t)(at - j->data);
  return true;
}

static bool read_tensor(xt_json *j, tensor_header *t) {
  xt_json_string key;
  if (!j->wrong && read_compact(j, t)) return true;
  t->has_dtype = t->has_shape = t->has_offsets = false;
  if (!xt_json_object(j)) return false;
  while (xt_json_key(j, &key)) {
    bool *has = equals(key, "dtype")          ? &t->has_dtype
                : equals(key, "shape")        ? &t->has_shape
                : equals(key, "data_offsets") ? &t->has_offsets
                                              : NULL;
    if (!has) return xt_json_fail(j, "unknown field of a tensor; expected dtype, shape and data_offsets");
    if (*has) return xt_json_fail(j, "duplicate key in an object");
    *has = true;
    bool read = has == &t->has_dtype   ? xt_json_text(j, &t->dtype)
                : has == &t->has_shape ? read_shape(j, t)
                                       : read_offsets(j, t);
    if (!read) return j->wrong ? false : xt_json_fail(j, "expected two integers as data_offsets");
  }
  if (j->wrong) return false;
  return (t->has_dtype && t->has_shape && t->has_offsets) ||
         xt_json_fail(j, "missing field of a tensor; expected dtype, shape and data_offsets");
}

static xt_status read_metadata(xt_checkpoint *c, xt_json *j, xt_error *error) {
  xt_table keys = {0};
  xt_json_string key, value;
  bool is_new = true;
  xt_node *dict = c->metadata = xt_node_new(&c->arena, XT_NODE_DICT);
  bool ok = dict != NULL, entered = xt_json_peek(j) == 'n' ? !xt_json_word(j, "null") : xt_json_object(j);
  while (ok && entered && is_new && xt_json_key(j, &key) && xt_json_text(j, &value)) {
    ok = xt_table_put(&keys, key.data, key.size, &is_new) != NULL;
    xt_node *k = xt_node_new_text(&c->arena, key.data, key.size);
    xt_node *v = xt_node_new_text(&c->arena, value.data, value.size);
    ok = ok && k && v && xt_node_append(&c->arena, dict, k) && xt_node_append(&c->arena, dict, v);
  }
  xt_table_free(&keys);
  if (!is_new) xt_json_fail(j, "duplicate key in an object");
  return ok ? XT_STATUS_ok : xt_opening_no_memory(error);
}

/* ---- Tensors ---- */

/* Converts the shape of a tensor with elements smaller than a byte: they are packed along the last dimension. If that
 * dimension does not fill whole bytes, the tensor becomes one-dimensional. */
static bool pack_shape(tensor_header *t, int bits) {
  int64_t last = t->ndim ? t->sizes[t->ndim - 1] : 1, packed;
  if (!bits) return true;
  if (__builtin_mul_overflow(last, bits, &packed)) return false;
  if (t->ndim && packed % 8 == 0) {
    t->sizes[t->ndim - 1] = packed / 8;
    return true;
  }
  t->ndim = 1;
  t->sizes[0] = t->end - t->begin;
  return true;
}

/* Computes the number of bits of all elements. Returns false on overflow. */
static bool count_bits(const tensor_header *t, uint64_t bits, uint64_t *out) {
  *out = bits;
  for (uint32_t d = 0; d < t->ndim; d++)
    if (t->sizes[d] == 0) return *out = 0, true;
  for (uint32_t d = 0; d < t->ndim; d++)
    if (__builtin_mul_overflow(*out, (uint64_t)t->sizes[d], out)) return false;
  return true;
}

/* The records may move, because nothing points to them yet. */
static bool reserve_record(xt_checkpoint *c) {
  xt_records old = c->directory;
  if (old.count < old.capacity) return true;
  if (!xt_records_reserve(&c->directory, &c->arena, 2 * old.capacity, false)) return false;
  memcpy(c->directory.list, old.list, old.count * sizeof *old.list);
  return true;
}

static xt_status add_tensor(xt_checkpoint *c, const data_range *data, tensor_header *t, xt_error *error) {
  xt_dtype dtype = xt_dtype_from_safetensors(t->dtype.data, t->dtype.size);
  uint64_t bits;
  uint32_t storage;
  bool duplicate;
  if (dtype == XT_DTYPE_COUNT) return corrupt(t, error, "has an unknown dtype");
  const xt_dtype_info *info = xt_dtype_get(dtype);
  if (t->begin < 0 || t->end < t->begin) return corrupt(t, error, "has data_offsets that are not a valid range");
  if ((uint64_t)t->end > data->size)
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)c->file_size,
                       "tensor %s ends at byte %" PRIu64 " but the file has only %" PRIu64
                       " bytes, probably an incomplete download; download it again",
                       xt_printable_text(t->name.data, t->name.size).text, data->at + (uint64_t)t->end, c->file_size);
  if (!count_bits(t, info->packed ? (uint64_t)info->packed : 8 * info->size, &bits))
    return corrupt(t, error, "has a shape whose size overflows");
  if (bits != 8 * (uint64_t)(t->end - t->begin))
    return corrupt(t, error, "has a shape that does not fit its data_offsets");
  if (!pack_shape(t, info->packed)) return corrupt(t, error, "has a shape whose size overflows");
  xt_node *key = xt_node_new_text(&c->arena, t->name.data, t->name.size), *tensor = xt_node_new_tensor(&c->arena);
  if (!key || !tensor) return xt_opening_no_memory(error);
  int64_t numel = (t->end - t->begin) / (int64_t)info->size;
  xt_status status = xt_storages_add(&c->storages, t->name.data, t->name.size, dtype, numel, 0, &storage, error);
  if (status == XT_STATUS_ok)
    status =
        xt_tensor_desc_set_contiguous(tensor->tensor, &c->storages, storage, dtype, t->sizes, t->ndim, false, 0, error);
  if (status != XT_STATUS_ok) return status;
  if (!reserve_record(c)) return xt_opening_no_memory(error);
  if (!xt_records_add_stored(&c->directory, t->name.data, t->name.size, data->at + (uint64_t)t->begin,
                             (uint64_t)(t->end - t->begin), &duplicate))
    return xt_opening_no_memory(error);
  return xt_node_append(&c->arena, c->root, key) && xt_node_append(&c->arena, c->root, tensor)
             ? XT_STATUS_ok
             : xt_opening_no_memory(error);
}

static int compare_records(const void *a, const void *b) {
  const xt_record *x = *(xt_record *const *)a, *y = *(xt_record *const *)b;
  if (x->header != y->header) return x->header < y->header ? -1 : 1;
  return x->end < y->end ? -1 : x->end > y->end;
}

/* Checks that the tensors cover the file after the header without gaps or overlaps. */
static xt_status check_layout(xt_opening *o, uint64_t at, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  xt_record **sorted = malloc((c->directory.count + 1) * sizeof *sorted);
  xt_status status = XT_STATUS_ok;
  if (!sorted) return xt_opening_no_memory(error);
  bool in_order = true;
  for (size_t i = 0; i < c->directory.count; i++) {
    sorted[i] = &c->directory.list[i];
    in_order &= !i || compare_records(&sorted[i - 1], &sorted[i]) <= 0;
  }
  if (!in_order) qsort(sorted, c->directory.count, sizeof *sorted, compare_records);
  for (size_t i = 0; i < c->directory.count && status == XT_STATUS_ok; i++) {
    if (sorted[i]->header != at)
      status = xt_error_at(error, XT_STATUS_corrupt, (int64_t)at, "invalid safetensors file: %s",
                           sorted[i]->header > at ? "gap between two tensors" : "two tensors overlap");
    at = sorted[i]->end;
  }
  free(sorted);
  if (status == XT_STATUS_ok && at != c->file_size && !o->size_unknown)
    status =
        xt_error_at(error, XT_STATUS_corrupt, (int64_t)at,
                    "invalid safetensors file: the tensors end at byte %" PRIu64 " but the file has %" PRIu64 " bytes",
                    at, c->file_size);
  return status;
}

/* Checks that no name occurs twice, with the table of names that the index already has. */
static xt_status check_names(const xt_checkpoint *c, xt_error *error) {
  for (size_t i = 0; c->index.names.count < c->index.count && i < c->index.count; i++)
    if (c->index.same[i]) {
      tensor_header t = {.name = {c->index.entries[i].name, c->index.entries[i].name_size}};
      return corrupt(&t, error, "is defined twice");
    }
  return XT_STATUS_ok;
}

xt_status xt_safetensors_read_header(xt_opening *o, const uint8_t *header, size_t size, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  xt_json j;
  tensor_header t;
  size_t count = size / USUAL_SIZE + 1;
  data_range data = {PREFIX + size, c->file_size - PREFIX - size};
  xt_json_begin(&j, header, size, &c->arena);
  c->root = xt_node_new(&c->arena, XT_NODE_DICT);
  if (!c->root || !xt_records_reserve(&c->directory, &c->arena, count, false) ||
      !xt_storages_reserve(&c->storages, count))
    return xt_opening_no_memory(error);
  if (xt_json_object(&j)) {
    while (xt_json_key(&j, &t.name)) {
      xt_status status = XT_STATUS_ok;
      if (equals(t.name, "__metadata__")) {
        if (c->metadata) xt_json_fail(&j, "duplicate key in an object");
        else status = read_metadata(c, &j, error);
      } else if (read_tensor(&j, &t)) {
        status = add_tensor(c, &data, &t, error);
      }
      if (status != XT_STATUS_ok) return status;
    }
  }
  xt_status status = xt_json_end(&j, error);
  if (status != XT_STATUS_ok) {
    if (error->offset >= 0) error->offset += PREFIX;
    return status;
  }
  status = check_layout(o, data.at, error);
  if (status != XT_STATUS_ok) return status;
  if (!xt_opening_reserve_records(o)) return xt_opening_no_memory(error);
  for (size_t i = 0; i < c->directory.count; i++) c->records[i] = &c->directory.list[i];
  status = xt_opening_finish(o, NULL, error);
  return status == XT_STATUS_ok ? check_names(c, error) : status;
}

xt_status xt_safetensors_header_size(const xt_checkpoint *c, const uint8_t *prefix, uint64_t *size, xt_error *error) {
  *size = xt_le(prefix, PREFIX);
  if (*size > MAX_HEADER)
    return xt_error_at(error, XT_STATUS_limit, 0,
                       "the safetensors header has %" PRIu64 " bytes; the format allows at most %d", *size, MAX_HEADER);
  if (*size > c->file_size - PREFIX)
    return xt_error_at(error, XT_STATUS_truncated, 0,
                       "the safetensors header has %" PRIu64 " bytes but the file has only %" PRIu64
                       ", probably an incomplete download; download it again",
                       *size, c->file_size);
  return XT_STATUS_ok;
}

static xt_status open(xt_opening *o, xt_need *need, xt_error *error) {
  work *w = o->work;
  if (o->state == HEADER) return xt_safetensors_read_header(o, w->header, w->header_size, error);
  xt_status status = xt_safetensors_header_size(o->checkpoint, o->head, &w->header_size, error);
  if (status != XT_STATUS_ok) return status;
  o->state = HEADER;
  return xt_opening_request(o, &w->header, PREFIX, w->header_size, need, error);
}

static size_t skip_space(const uint8_t *head, size_t size, size_t at) {
  while (at < size && (head[at] == ' ' || (head[at] >= '\t' && head[at] <= '\r'))) at++;
  return at;
}

/* The length of a header, then a JSON object, which white space may precede. No other format has such bytes: the length
 * makes bytes 4 to 7 zero. */
static xt_match matches(const uint8_t *head, size_t size) {
  if (size <= PREFIX || xt_le(head, PREFIX) > MAX_HEADER || xt_le(head, PREFIX) < 2) return XT_MATCH_NO;
  size_t at = skip_space(head, size, PREFIX);
  if (at == size) return XT_MATCH_MORE;
  if (head[at] != '{') return XT_MATCH_NO;
  at = skip_space(head, size, at + 1);
  if (at == size) return XT_MATCH_MORE;
  return head[at] == '"' || head[at] == '}' ? XT_MATCH_YES : XT_MATCH_NO;
}

/* A length above the format's limit, up to 1 TiB, or JSON that is invalid from the start. */
static bool resembles(const uint8_t *head, size_t size) {
  return size > PREFIX && head[PREFIX] == '{' && xt_le(head, PREFIX) >> 40 == 0;
}

const xt_format xt_safetensors_format = {
    .name = "safetensors",
    .matches = matches,
    .resembles = resembles,
    .signature = PREFIX + 2, /* with the shortest header, {} */
    .open_size = sizeof(work),
    .open = open,
    .push = &xt_safetensors_push,
};
