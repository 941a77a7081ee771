/* Storages and handles. */
#include <stdlib.h>
#include <string.h>

#include "core/base/layout.h"
#include "core/memory/memory.h"
#include "plain/plain.h"

static xt_status no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while creating a tensor");
}

xt_status xt_plain_refused(xt_error *error) {
  return xt_memory_refused() == XT_REFUSED_BUDGET ? xt_error_budget(error) : no_memory(error);
}

/* ---- Shapes ---- */

void xt_plain_shape_contiguous(xt_plain_shape *shape) {
  int64_t stride = 1;
  for (int d = shape->ndim - 1; d >= 0; d--) {
    shape->strides[d] = stride;
    /* only the strides of a tensor without elements can overflow */
    if (shape->sizes[d] > 1 && __builtin_mul_overflow(stride, shape->sizes[d], &stride)) stride = 1;
  }
}

xt_plain_shape xt_plain_shape_of(const xt_tensor *tensor) {
  const xt_tensor_info *info = &tensor->info;
  xt_plain_shape shape = {.dtype = info->dtype, .ndim = info->ndim};
  memcpy(shape.sizes, info->sizes, (size_t)info->ndim * sizeof *shape.sizes);
  memcpy(shape.strides, info->strides, (size_t)info->ndim * sizeof *shape.strides);
  if (info->data) shape.offset = (size_t)((char *)info->data - (char *)info->storage);
  return shape;
}

static xt_status too_large(xt_error *error) {
  return xt_error_set(error, XT_STATUS_bad_argument, "the shape and the strides of the tensor overflow 64 bits");
}

/* Counts the elements, and the bytes from the first to the last one. */
static xt_status measure(const xt_plain_shape *shape, int64_t *numel, size_t *span, xt_error *error) {
  int64_t last = 0, step, bytes;
  *numel = 1;
  for (int d = 0; d < shape->ndim; d++) {
    if (shape->sizes[d] < 0 || shape->strides[d] < 0)
      return xt_error_set(error, XT_STATUS_bad_argument, "a size or a stride of the tensor is negative");
    if (!shape->sizes[d]) *numel = 0;
  }
  *span = 0;
  if (!*numel) return XT_STATUS_ok;
  for (int d = 0; d < shape->ndim; d++)
    if (__builtin_mul_overflow(*numel, shape->sizes[d], numel) ||
        __builtin_mul_overflow(shape->sizes[d] - 1, shape->strides[d], &step) ||
        __builtin_add_overflow(last, step, &last))
      return too_large(error);
  if (last == INT64_MAX || __builtin_mul_overflow(last + 1, (int64_t)xt_dtype_get(shape->dtype)->size, &bytes) ||
      __builtin_mul_overflow(*numel, (int64_t)xt_dtype_get(shape->dtype)->size, &step))
    return too_large(error);
  *span = (size_t)bytes;
  return XT_STATUS_ok;
}

/* A dimension of size 1 may have any stride. A tensor without elements is contiguous. */
static bool is_contiguous(const xt_plain_shape *shape, int64_t numel) {
  int64_t expected = 1;
  for (int d = shape->ndim - 1; numel && d >= 0; d--) {
    if (shape->sizes[d] == 1) continue;
    if (shape->strides[d] != expected) return false;
    expected *= shape->sizes[d];
  }
  return true;
}

/* ---- Freeing ---- */

static void drop_storage(xt_plain_storage *storage) {
  if (!storage || atomic_fetch_sub(&storage->references, 1) > 1) return;
  if (storage->release) storage->release(storage->owner);
  free(storage);
}

static void drop_parts(xt_plain_parts *parts) {
  if (!parts) return;
  for (int i = 0; i < 2; i++) xt_frozen_remove(&parts->frozen[i]);
  for (int i = 0; i < parts->count; i++) xt_plain_drop(parts->list[i]);
  free(parts);
}

static void destroy(xt_reapable *item) {
  xt_plain_handle *handle = (xt_plain_handle *)item;
  drop_parts(handle->parts);
  drop_storage(handle->storage);
  free(handle);
  atomic_fetch_sub(&xt_memory_live.tensors, 1);
}

void xt_plain_drop(xt_tensor *tensor) {
  if (__atomic_sub_fetch(&tensor->references, 1, __ATOMIC_ACQ_REL) == 0) tensor->reapable.run(&tensor->reapable);
}

/* ---- Handles ---- */

static xt_plain_handle *new_handle(const xt_plain_shape *shape, int64_t numel) {
  size_t n = (size_t)shape->ndim;
  xt_plain_handle *handle = calloc(1, sizeof *handle + 2 * n * sizeof *handle->dims);
  if (!handle) return NULL;
  memcpy(handle->dims, shape->sizes, n * sizeof *shape->sizes);
  memcpy(handle->dims + n, shape->strides, n * sizeof *shape->strides);
  handle->tensor = (xt_tensor){.reapable = {.run = destroy}, .references = 1};
  handle->tensor.info = (xt_tensor_info){.dtype = shape->dtype,
                                         .device = {XT_DEVICE_CPU, -1},
                                         .ndim = shape->ndim,
                                         .sizes = handle->dims,
                                         .strides = handle->dims + n,
                                         .numel = numel,
                                         .contiguous = is_contiguous(shape, numel)};
  atomic_fetch_add(&xt_memory_live.tensors, 1);
  return handle;
}

/* Takes ownership of the reference to the storage. */
static xt_status make(xt_plain_storage *storage, const xt_plain_shape *shape, xt_tensor **out, xt_error *error) {
  int64_t numel;
  size_t span;
  xt_status status = measure(shape, &numel, &span, error);
  if (status == XT_STATUS_ok && span && (shape->offset > storage->bytes || span > storage->bytes - shape->offset))
    status = xt_error_set(error, XT_STATUS_bad_argument,
                          "the tensor would need %zu bytes from byte %zu on, but its storage has %zu", span,
                          shape->offset, storage->bytes);
  xt_plain_handle *handle = status == XT_STATUS_ok ? new_handle(shape, numel) : NULL;
  if (!handle) {
    drop_storage(storage);
    return status == XT_STATUS_ok ? no_memory(error) : status;
  }
  xt_tensor_info *info = &handle->tensor.info;
  handle->storage = storage;
  info->plain = true;
  size_t offset = shape->offset < storage->bytes ? shape->offset : storage->bytes; /* larger only without elements */
  info->data = storage->data ? (char *)storage->data + offset : NULL;
  info->span = span;
  info->storage = storage->data;
  info->storage_bytes = storage->bytes;
  *out = &handle->tensor;
  return XT_STATUS_ok;
}

static xt_plain_storage *keep_storage(xt_plain_storage *storage) {
  atomic_fetch_add(&storage->references, 1);
  return storage;
}

static xt_plain_storage *new_storage(void *data, size_t bytes, void *owner, void (*release)(void *)) {
  xt_plain_storage *storage = malloc(sizeof *storage);
  if (!storage) return NULL;
  *storage = (xt_plain_storage){.data = data, .bytes = bytes, .owner = owner, .release = release};
  atomic_init(&storage->references, 1);
  return storage;
}

/* A quantized tensor stays one: its handle is made again with the same parts by set_requires_grad alone. */
xt_status xt_plain_view(const xt_tensor *tensor, const xt_plain_shape *shape, xt_tensor **out, xt_error *error) {
  const xt_plain_handle *handle = xt_plain_of(tensor);
  if (!handle->storage) return xt_plain_meta(shape, out, error);
  return make(keep_storage(handle->storage), shape, out, error);
}

xt_status xt_plain_meta(const xt_plain_shape *shape, xt_tensor **out, xt_error *error) {
  int64_t numel;
  size_t span;
  xt_status status = measure(shape, &numel, &span, error);
  if (status != XT_STATUS_ok) return status;
  xt_plain_handle *handle = new_handle(shape, numel);
  if (!handle) return no_memory(error);
  handle->tensor.info.device.type = XT_DEVICE_META;
  *out = &handle->tensor;
  return XT_STATUS_ok;
}

xt_status xt_plain_alloc(const xt_plain_shape *shape, xt_tensor **out, xt_error *error) {
  int64_t numel;
  size_t bytes;
  xt_status status = measure(shape, &numel, &bytes, error);
  if (status != XT_STATUS_ok) return status;
  void *data = bytes ? xt_memory_alloc(bytes) : NULL;
  if (bytes && !data) return xt_plain_refused(error);
  xt_plain_storage *storage = new_storage(data, bytes, data, data ? xt_memory_free : NULL);
  if (storage) return make(storage, shape, out, error);
  if (data) xt_memory_free(data);
  return no_memory(error);
}

xt_status xt_plain_empty(xt_plain_shape *shape, xt_tensor **out, xt_error *error) {
  shape->offset = 0;
  xt_plain_shape_contiguous(shape);
  return xt_plain_alloc(shape, out, error);
}

xt_status xt_plain_compose(const xt_tensor *tensor, const xt_plain_shape *shape, uint8_t layout, uint8_t scheme,
                           xt_plain_parts *parts, xt_tensor **out, xt_error *error) {
  xt_status status = tensor ? xt_plain_view(tensor, shape, out, error) : xt_plain_meta(shape, out, error);
  if (status != XT_STATUS_ok) {
    drop_parts(parts);
    return status;
  }
  xt_plain_handle *handle = (xt_plain_handle *)*out;
  xt_tensor_info *info = &(*out)->info;
  handle->parts = parts;
  info->device.type = XT_DEVICE_CPU;
  info->layout = layout;
  info->scheme = scheme;
  info->plain = false;
  if (layout == XT_LAYOUT_STRIDED) return status;
  info->strides = NULL;
  info->contiguous = false;
  return status;
}

/* ---- The functions of torch.h ---- */

static bool set_dims(xt_plain_shape *shape, int ndim, const int64_t *sizes, const int64_t *strides) {
  if (ndim < 0 || ndim > XT_MAX_DIMS) return false;
  shape->ndim = ndim;
  memcpy(shape->sizes, sizes, (size_t)ndim * sizeof *sizes);
  if (strides) memcpy(shape->strides, strides, (size_t)ndim * sizeof *strides);
  return true;
}

static xt_status too_many_dims(xt_error *error) {
  return xt_error_set(error, XT_STATUS_unsupported, "tensors with " XT_TOO_MANY_DIMS " are not supported");
}

xt_status xt_plain_tensor_empty(xt_dtype dtype, int ndim, const int64_t *sizes, xt_tensor **out, xt_error *error) {
  xt_plain_shape shape = {.dtype = dtype};
  return set_dims(&shape, ndim, sizes, NULL) ? xt_plain_empty(&shape, out, error) : too_many_dims(error);
}

static xt_status check_foreign(const xt_foreign *memory, xt_plain_shape *shape, size_t *bytes, xt_error *error) {
  int64_t numel;
  xt_status status = xt_plain_check_device(memory->device, error);
  if (status != XT_STATUS_ok) return status;
  if (memory->device.type != XT_DEVICE_CPU)
    return xt_error_set(error, XT_STATUS_unsupported, "a meta tensor has no memory that could be shared");
  if (!xt_dtype_aligned(memory->data, memory->dtype))
    return xt_error_set(error, XT_STATUS_bad_argument, "the memory is not aligned for %s",
                        xt_dtype_get(memory->dtype)->name);
  if (!set_dims(shape, memory->ndim, memory->sizes, memory->strides)) return too_many_dims(error);
  return measure(shape, &numel, bytes, error);
}

xt_status xt_plain_tensor_foreign(const xt_foreign *memory, xt_tensor **out, xt_error *error) {
  xt_plain_shape shape = {.dtype = memory->dtype};
  size_t bytes;
  xt_status status = check_foreign(memory, &shape, &bytes, error);
  xt_plain_storage *storage =
      status == XT_STATUS_ok ? new_storage(memory->data, bytes, memory->owner, memory->release) : NULL;
  if (!storage) {
    memory->release(memory->owner);
    return status == XT_STATUS_ok ? no_memory(error) : status;
  }
  status = make(storage, &shape, out, error);
  if (status == XT_STATUS_ok) (*out)->light = memory->light;
  return status;
}

xt_status xt_plain_tensor_view(const xt_tensor *bytes, xt_dtype dtype, const xt_tensor_layout *layout, xt_tensor **out,
                               xt_error *error) {
  xt_plain_shape shape = {.dtype = dtype};
  if (!set_dims(&shape, layout->ndim, layout->sizes, layout->strides)) return too_many_dims(error);
  if (layout->offset < 0 || __builtin_mul_overflow((size_t)layout->offset, xt_dtype_get(dtype)->size, &shape.offset))
    return too_large(error);
  return xt_plain_view(bytes, &shape, out, error);
}

/* The parts of a second handle are frozen by it as well: either may be freed first. */
static xt_plain_parts *copy_parts(const xt_plain_parts *parts) {
  xt_plain_parts *copy = malloc(sizeof *copy);
  if (!copy) return NULL;
  *copy = *parts;
  for (int i = 0; i < parts->count; i++) xt_tensor_keep(parts->list[i]);
  memset(copy->frozen, 0, sizeof copy->frozen);
  for (int i = 0; i < 2; i++)
    xt_frozen_add(&copy->frozen[i], (void *)parts->frozen[i].start, parts->frozen[i].end - parts->frozen[i].start);
  return copy;
}

xt_status xt_plain_tensor_set_requires_grad(const xt_tensor *tensor, bool requires_grad, xt_tensor **out,
                                            xt_error *error) {
  const xt_plain_handle *handle = xt_plain_of(tensor);
  const xt_tensor_info *info = &tensor->info;
  xt_plain_shape shape = {.dtype = info->dtype};
  set_dims(&shape, info->ndim, handle->dims, handle->dims + info->ndim);
  if (info->data) shape.offset = (size_t)((char *)info->data - (char *)info->storage);
  xt_status status;
  if (handle->parts) {
    xt_plain_parts *parts = copy_parts(handle->parts);
    if (!parts) return no_memory(error);
    status = xt_plain_compose(handle->storage ? tensor : NULL, &shape, info->layout, info->scheme, parts, out, error);
  } else {
    status = xt_plain_view(tensor, &shape, out, error);
  }
  if (status == XT_STATUS_ok) (*out)->requires_grad = requires_grad;
  return status;
}
