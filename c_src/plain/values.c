/* The values of tensors: copies, conversion and comparison. */
#include <string.h>

#include "core/base/convert.h"
#include "core/base/layout.h"
#include "plain/plain.h"

/* ---- Copies ---- */

typedef struct {
  int64_t size, to, from; /* steps in bytes */
} dimension;

/* Joins neighboring dimensions that both tensors walk in one go. Returns the number of dimensions that are left. */
static int join(const xt_tensor_info *to, const xt_tensor_info *from, dimension *dims) {
  int64_t item = (int64_t)xt_dtype_get(to->dtype)->size;
  int count = 0;
  for (int d = 0; d < to->ndim; d++) {
    dimension next = {to->sizes[d], to->strides[d] * item, from->strides[d] * item};
    if (next.size == 1) continue;
    dimension *last = count ? &dims[count - 1] : NULL;
    if (last && last->to == next.size * next.to && last->from == next.size * next.from) {
      next.size *= last->size;
      *last = next;
    } else {
      dims[count++] = next;
    }
  }
  return count;
}

static void copy_line(char *to, const char *from, const dimension *line, size_t item) {
  if (line->to == (int64_t)item && line->from == (int64_t)item) {
    memcpy(to, from, (size_t)line->size * item);
    return;
  }
  for (int64_t i = 0; i < line->size; i++, to += line->to, from += line->from) {
    switch (item) { /* a copy of constant size is one instruction */
    case 1: *to = *from; break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    case 8: memcpy(to, from, 8); break;
    default: memcpy(to, from, item);
    }
  }
}

static void copy_dims(char *to, const char *from, const dimension *dims, int count, size_t item) {
  if (count == 1) {
    copy_line(to, from, dims, item);
    return;
  }
  for (int64_t i = 0; i < dims->size; i++, to += dims->to, from += dims->from)
    copy_dims(to, from, dims + 1, count - 1, item);
}

/* A transposed matrix is copied in tiles, so that each line of the cache is read once. */
enum { TILE = 64 };

static void copy_tiles(char *to, const char *from, const dimension *dims, size_t item) {
  for (int64_t row = 0; row < dims[0].size; row += TILE)
    for (int64_t column = 0; column < dims[1].size; column += TILE) {
      int64_t rows = dims[0].size - row < TILE ? dims[0].size - row : TILE;
      int64_t columns = dims[1].size - column < TILE ? dims[1].size - column : TILE;
      dimension tile[2] = {{rows, dims[0].to, dims[0].from}, {columns, dims[1].to, dims[1].from}};
      copy_dims(to + row * dims[0].to + column * dims[1].to, from + row * dims[0].from + column * dims[1].from, tile, 2,
                item);
    }
}

void xt_plain_copy(const xt_tensor_info *to, const xt_tensor_info *from) {
  dimension dims[XT_MAX_DIMS];
  size_t item = xt_dtype_get(to->dtype)->size;
  if (!to->numel) return;
  int count = join(to, from, dims);
  if (!count) memcpy(to->data, from->data, item);
  else if (count == 2 && dims[0].from < dims[1].from) copy_tiles(to->data, from->data, dims, item);
  else copy_dims(to->data, from->data, dims, count, item);
}

xt_status xt_plain_check_strided(const xt_tensor *tensor, xt_error *error) {
  const xt_tensor_info *info = &tensor->info;
  if (info->device.type == XT_DEVICE_META)
    return xt_error_set(error, XT_STATUS_unsupported, "a meta tensor has no values, only a shape and a dtype");
  if (info->layout != XT_LAYOUT_STRIDED)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "this is not possible with a %s tensor without LibTorch; use \"to_dense\" first. %s",
                        xt_layout_name(info->layout), xt_plain_hint);
  return XT_STATUS_ok;
}

/* Whether the strides are those of contiguous memory in some order of the dimensions. */
static bool is_dense(const xt_tensor_info *info) {
  bool used[XT_MAX_DIMS] = {false};
  int64_t expected = 1;
  for (int found = 0, d = 0; found < info->ndim; d = 0, found++) {
    while (d < info->ndim && (used[d] || (info->sizes[d] != 1 && info->strides[d] != expected))) d++;
    if (d == info->ndim) return false;
    used[d] = true;
    expected *= info->sizes[d];
  }
  return true;
}

bool xt_plain_keep_order(const xt_tensor *tensor, xt_plain_shape *shape) {
  bool dense = tensor->info.numel && is_dense(&tensor->info);
  shape->offset = 0;
  if (!dense) xt_plain_shape_contiguous(shape);
  return dense || !tensor->info.numel;
}

xt_status xt_plain_clone(const xt_tensor *tensor, xt_tensor **out, xt_error *error) {
  xt_status status = xt_plain_check_strided(tensor, error);
  if (status != XT_STATUS_ok) return status;
  xt_plain_shape shape = xt_plain_shape_of(tensor);
  xt_plain_keep_order(tensor, &shape);
  status = xt_plain_alloc(&shape, out, error);
  if (status == XT_STATUS_ok) xt_plain_copy(&(*out)->info, &tensor->info);
  return status;
}

xt_status xt_plain_contiguous(const xt_tensor *tensor, xt_tensor **out, xt_error *error) {
  xt_status status = xt_plain_check_strided(tensor, error);
  if (status != XT_STATUS_ok) return status;
  xt_plain_shape shape = xt_plain_shape_of(tensor);
  if (tensor->info.contiguous) return xt_plain_view(tensor, &shape, out, error);
  status = xt_plain_empty(&shape, out, error);
  if (status == XT_STATUS_ok) xt_plain_copy(&(*out)->info, &tensor->info);
  return status;
}

xt_status xt_plain_tensor_plain(const xt_tensor *tensor, xt_tensor **out, xt_error *error) {
  if (tensor->info.scheme) return xt_plain_dequantize(tensor, out, error);
  if (tensor->info.layout != XT_LAYOUT_STRIDED) return xt_plain_dense(tensor, out, error);
  return xt_plain_contiguous(tensor, out, error);
}

/* ---- Conversion ---- */

static xt_status check_dtype(xt_dtype dtype, xt_error *error) {
  const xt_dtype_info *info = xt_dtype_get(dtype);
  if (info->kind != XT_KIND_QUANT && xt_convert_supported(dtype)) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_unsupported, "elements of %s cannot be converted", info->name);
}

/* `from` has no gaps. */
static xt_status convert_dense(const xt_tensor *from, xt_dtype dtype, xt_tensor **out, xt_error *error) {
  xt_plain_shape shape = xt_plain_shape_of(from);
  shape.dtype = dtype;
  shape.offset = 0;
  xt_status status = check_dtype(from->info.dtype, error);
  if (status == XT_STATUS_ok) status = check_dtype(dtype, error);
  if (status == XT_STATUS_ok) status = xt_plain_alloc(&shape, out, error);
  if (status == XT_STATUS_ok)
    xt_convert(from->info.dtype, from->info.data, dtype, (*out)->info.data, (size_t)from->info.numel);
  return status;
}

xt_status xt_plain_convert(const xt_tensor *tensor, xt_dtype dtype, xt_tensor **out, xt_error *error) {
  xt_tensor *plain;
  if (!tensor->info.scheme && !tensor->info.plain) return xt_plain_check_strided(tensor, error);
  if (tensor->info.plain && (!tensor->info.numel || is_dense(&tensor->info)))
    return convert_dense(tensor, dtype, out, error);
  xt_status status = xt_plain_tensor_plain(tensor, &plain, error);
  if (status != XT_STATUS_ok) return status;
  status = convert_dense(plain, dtype, out, error);
  xt_plain_drop(plain);
  return status;
}

xt_status xt_plain_check_device(xt_device device, xt_error *error) {
  if (device.type == XT_DEVICE_CPU || device.type == XT_DEVICE_META) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_unsupported,
                      "device %s is not available: tensors outside the CPU need LibTorch. %s",
                      xt_device_type_name(device.type), xt_plain_hint);
}

static xt_status to_meta(const xt_tensor *tensor, xt_dtype dtype, xt_tensor **out, xt_error *error) {
  if (tensor->info.layout != XT_LAYOUT_STRIDED) return xt_plain_check_strided(tensor, error);
  xt_plain_shape shape = xt_plain_shape_of(tensor);
  shape.dtype = dtype;
  return xt_plain_meta(&shape, out, error);
}

xt_status xt_plain_tensor_to(const xt_tensor *tensor, xt_dtype dtype, xt_device device, xt_tensor **out,
                             xt_error *error) {
  xt_status status = xt_plain_check_device(device, error);
  if (status != XT_STATUS_ok) return status;
  if (device.type == XT_DEVICE_META) return to_meta(tensor, dtype, out, error);
  if (dtype == tensor->info.dtype) return xt_plain_tensor_set_requires_grad(tensor, false, out, error);
  return xt_plain_convert(tensor, dtype, out, error);
}

/* ---- Comparison ---- */

static bool equal_numbers(const xt_numbers *a, const xt_numbers *b, size_t count) {
  if (a->kind != XT_KIND_FLOAT && a->kind != XT_KIND_COMPLEX) return !memcmp(a->i, b->i, count * sizeof *a->i);
  bool equal = true;
  for (size_t n = 0; n < count; n++) {
    equal &= a->re[n] == b->re[n];
    if (a->kind == XT_KIND_COMPLEX) equal &= a->im[n] == b->im[n];
  }
  return equal;
}

static bool equal_values(const xt_tensor_info *a, const xt_tensor_info *b) {
  size_t size = xt_dtype_get(a->dtype)->size, count = (size_t)a->numel;
  if (!xt_convert_supported(a->dtype)) return !count || !memcmp(a->data, b->data, size * count);
  xt_numbers x, y;
  for (size_t done = 0; done < count; done += XT_NUMBERS) {
    size_t part = count - done < XT_NUMBERS ? count - done : XT_NUMBERS;
    xt_numbers_read(&x, a->dtype, (char *)a->data + done * size, part);
    xt_numbers_read(&y, b->dtype, (char *)b->data + done * size, part);
    if (!equal_numbers(&x, &y, part)) return false;
  }
  return true;
}

xt_status xt_plain_tensor_equal(const xt_tensor *a, const xt_tensor *b, bool *equal, xt_error *error) {
  xt_tensor *x = NULL, *y = NULL;
  *equal = a->info.dtype == b->info.dtype && a->info.ndim == b->info.ndim &&
           !memcmp(a->info.sizes, b->info.sizes, (size_t)a->info.ndim * sizeof *a->info.sizes);
  if (!*equal) return XT_STATUS_ok;
  xt_status status = xt_plain_tensor_plain(a, &x, error);
  if (status == XT_STATUS_ok) status = xt_plain_tensor_plain(b, &y, error);
  if (status == XT_STATUS_ok) *equal = equal_values(&x->info, &y->info);
  if (x) xt_plain_drop(x);
  if (y) xt_plain_drop(y);
  return status;
}
