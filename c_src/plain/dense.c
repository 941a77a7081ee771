/* Sparse tensors made dense, and dense ones made sparse. Their indices were checked when the tensor was made, and are
 * frozen since. */
#include <string.h>

#include "core/base/convert.h"
#include "core/base/element.h"
#include "core/base/layout.h"
#include "plain/arguments.h"

static int64_t index_at(const xt_tensor_info *info, int64_t i) {
  size_t size = xt_dtype_get(info->dtype)->size;
  return xt_element_read(info->dtype, (char *)info->data + (size_t)i * size).i;
}

/* Adds elements: an index may occur more than once. */
static void add_run(xt_dtype dtype, char *to, const char *from, size_t count) {
  xt_numbers a, b;
  size_t size = xt_dtype_get(dtype)->size;
  for (size_t done = 0; done < count; done += XT_NUMBERS) {
    size_t part = count - done < XT_NUMBERS ? count - done : XT_NUMBERS;
    xt_numbers_read(&a, dtype, to + done * size, part);
    xt_numbers_read(&b, dtype, from + done * size, part);
    for (size_t n = 0; n < part; n++) {
      if (a.kind == XT_KIND_COMPLEX) a.im[n] += b.im[n];
      if (a.kind == XT_KIND_COMPLEX || a.kind == XT_KIND_FLOAT) a.re[n] += b.re[n];
      else if (a.kind == XT_KIND_BOOL) a.i[n] |= b.i[n];
      else a.i[n] = (int64_t)((uint64_t)a.i[n] + (uint64_t)b.i[n]);
    }
    xt_numbers_write(&a, dtype, to + done * size, part);
  }
}

static void fill_coo(const xt_tensor_info *indices, const xt_tensor_info *values, const xt_tensor_info *out) {
  int64_t sparse = indices->sizes[0], count = indices->sizes[1], run = count ? values->numel / count : 0;
  size_t size = xt_dtype_get(out->dtype)->size;
  for (int64_t k = 0; k < count && run; k++) {
    int64_t at = 0;
    for (int64_t d = 0; d < sparse; d++) at += index_at(indices, d * count + k) * out->strides[d];
    add_run(out->dtype, (char *)out->data + (size_t)at * size, (char *)values->data + (size_t)(k * run) * size,
            (size_t)run);
  }
}

typedef struct {
  const xt_tensor_info *compressed, *plain, *values, *out;
  int64_t count, lines;   /* of one batch */
  int64_t height, width;  /* of a block */
  int64_t columns, inner; /* of the dense matrix; elements of one position */
  bool by_rows;
} matrix;

/* Copies the block with the number p of a batch to its place. */
static void copy_block(const matrix *m, int64_t batch, int64_t line, int64_t p, char *base) {
  size_t run = (size_t)m->inner * xt_dtype_get(m->out->dtype)->size;
  int64_t across = index_at(m->plain, batch * m->count + p);
  int64_t row = (m->by_rows ? line : across) * m->height, column = (m->by_rows ? across : line) * m->width;
  const char *block = (char *)m->values->data + (size_t)((batch * m->count + p) * m->height * m->width) * run;
  for (int64_t i = 0; i < m->height; i++)
    for (int64_t j = 0; j < m->width; j++)
      memcpy(base + (size_t)((row + i) * m->columns + column + j) * run, block + (size_t)(i * m->width + j) * run, run);
}

static void fill_compressed(const xt_tensor_info *compressed, const xt_tensor_info *plain, const xt_tensor_info *values,
                            const xt_tensor_info *out, int layout) {
  int batch_dims = compressed->ndim - 1;
  bool blocks = layout == XT_LAYOUT_BSR || layout == XT_LAYOUT_BSC;
  matrix m = {.compressed = compressed, .plain = plain, .values = values, .out = out};
  m.count = plain->sizes[batch_dims];
  m.lines = compressed->sizes[batch_dims] - 1;
  m.height = blocks ? values->sizes[batch_dims + 1] : 1;
  m.width = blocks ? values->sizes[batch_dims + 2] : 1;
  m.columns = out->sizes[batch_dims + 1];
  m.inner = out->strides[batch_dims + 1];
  m.by_rows = layout == XT_LAYOUT_CSR || layout == XT_LAYOUT_BSR;
  int64_t matrix_size = out->sizes[batch_dims] * out->strides[batch_dims], batches = out->numel / matrix_size;
  for (int64_t b = 0; b < batches; b++) {
    char *base = (char *)out->data + (size_t)(b * matrix_size) * xt_dtype_get(out->dtype)->size;
    for (int64_t line = 0; line < m.lines; line++) {
      int64_t from = index_at(compressed, b * (m.lines + 1) + line),
              to = index_at(compressed, b * (m.lines + 1) + line + 1);
      for (int64_t p = from; p < to; p++) copy_block(&m, b, line, p, base);
    }
  }
}

xt_status xt_plain_dense(const xt_tensor *tensor, xt_tensor **out, xt_error *error) {
  const xt_plain_parts *parts = xt_plain_of(tensor)->parts;
  xt_plain_shape shape = {.dtype = tensor->info.dtype, .ndim = tensor->info.ndim};
  xt_tensor *part[XT_PLAIN_PARTS] = {NULL};
  memcpy(shape.sizes, tensor->info.sizes, (size_t)shape.ndim * sizeof *shape.sizes);
  xt_status status = XT_STATUS_ok;
  if (!xt_convert_supported(shape.dtype))
    status = xt_error_set(error, XT_STATUS_unsupported, "a sparse tensor of %s cannot be made dense",
                          xt_dtype_get(shape.dtype)->name);
  for (int i = 0; i < parts->count && status == XT_STATUS_ok; i++)
    status = xt_plain_contiguous(parts->list[i], &part[i], error);
  if (status == XT_STATUS_ok) status = xt_plain_empty(&shape, out, error);
  if (status == XT_STATUS_ok && (*out)->info.numel) {
    memset((*out)->info.data, 0, (*out)->info.span);
    if (tensor->info.layout == XT_LAYOUT_COO) fill_coo(&part[0]->info, &part[1]->info, &(*out)->info);
    else fill_compressed(&part[0]->info, &part[1]->info, &part[2]->info, &(*out)->info, tensor->info.layout);
  }
  for (int i = 0; i < parts->count; i++)
    if (part[i]) xt_plain_drop(part[i]);
  return status;
}

/* ---- The other way: COO tensors of dense ones ---- */

static bool is_zero(xt_dtype dtype, const void *data) {
  xt_element e = xt_element_read(dtype, data);
  return e.re == 0 && e.im == 0 && e.i == 0;
}

/* Calls with NULL count; otherwise writes the places and the values of what is not zero. */
static int64_t find_values(const xt_tensor_info *from, int64_t count, int64_t *indices, char *values) {
  size_t size = xt_dtype_get(from->dtype)->size;
  int64_t found = 0;
  for (int64_t i = 0; i < from->numel; i++) {
    const char *element = (char *)from->data + (size_t)i * size;
    if (is_zero(from->dtype, element)) continue;
    for (int64_t d = from->ndim - 1, rest = i; indices && d >= 0; rest /= from->sizes[d--])
      indices[d * count + found] = rest % from->sizes[d];
    if (values) memcpy(values + (size_t)found * size, element, size);
    found++;
  }
  return found;
}

static xt_status to_coo(xt_plain_call *call, const xt_tensor *dense, xt_value *out) {
  const xt_tensor_info *info = &dense->info;
  int64_t count = find_values(info, 0, NULL, NULL);
  xt_plain_shape places = {.dtype = XT_int64, .ndim = 2, .sizes = {info->ndim, count}};
  xt_plain_shape elements = {.dtype = info->dtype, .ndim = 1, .sizes = {count}};
  xt_tensor *indices = NULL, *values = NULL;
  xt_value items[XT_MAX_DIMS], coalesced = {.kind = XT_VALUE_BOOL, .boolean = true};
  xt_status status = xt_plain_empty(&places, &indices, call->error);
  if (status == XT_STATUS_ok) status = xt_plain_empty(&elements, &values, call->error);
  if (status == XT_STATUS_ok) {
    if (count) find_values(info, count, indices->info.data, values->info.data);
    for (int d = 0; d < info->ndim; d++) items[d] = (xt_value){.kind = XT_VALUE_INT, .integer = info->sizes[d]};
    xt_value parts[] = {{.kind = XT_VALUE_TENSOR, .tensor = indices},
                        {.kind = XT_VALUE_TENSOR, .tensor = values},
                        {.kind = XT_VALUE_LIST, .list = {items, (size_t)info->ndim}}};
    xt_plain_call make = *call;
    for (int i = 0; i < 3; i++) make.values[i] = &parts[i];
    make.values[7] = &coalesced;
    status = xt_plain_op_sparse_coo_tensor(&make, out);
  }
  if (indices) xt_plain_drop(indices);
  if (values) xt_plain_drop(values);
  return status;
}

xt_status xt_plain_op_to_sparse(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_tensor_arg(call, 0), *dense;
  if (call->status == XT_STATUS_ok) call->status = xt_plain_check_strided(self, call->error);
  if (call->status != XT_STATUS_ok) return call->status;
  if (!xt_convert_supported(self->info.dtype)) return xt_plain_invalid(call, 0, "has elements that are not numbers");
  xt_status status = xt_plain_contiguous(self, &dense, call->error);
  if (status != XT_STATUS_ok) return status;
  status = to_coo(call, dense, out);
  xt_plain_drop(dense);
  return status;
}

xt_status xt_plain_op_to_dense(xt_plain_call *call, xt_value *out) {
  xt_tensor *self = xt_plain_any_arg(call, 0), *dense = NULL;
  if (call->status != XT_STATUS_ok) return call->status;
  if (self->info.layout == XT_LAYOUT_STRIDED) return xt_plain_op_alias(call, out);
  return xt_plain_return(xt_plain_dense(self, &dense, call->error), &dense, out);
}
