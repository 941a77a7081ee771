#include "core/tensor/desc.h"

#include <string.h>

xt_status xt_tensor_desc_invalid(int64_t at, const char *what, xt_error *error) {
  return xt_error_at(error, XT_STATUS_corrupt, at, "invalid tensor: %s", what);
}

static xt_status no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while describing a tensor");
}

xt_status xt_tensor_desc_check(const xt_tensor_desc *t, xt_storages *storages, const xt_storage_view *view, int64_t at,
                               xt_error *error) {
  int64_t last = t->offset, elements = 1, step, bytes;
  int64_t item = (int64_t)xt_dtype_get(t->dtype)->size;
  bool empty = false;
  for (uint32_t d = 0; d < t->ndim; d++) {
    int64_t size = t->sizes[d] ? t->sizes[d] : 1; /* the shape of an empty tensor must not overflow either */
    empty |= t->sizes[d] == 0;
    if (__builtin_mul_overflow(size - 1, t->strides[d], &step) || __builtin_add_overflow(last, step, &last) ||
        __builtin_mul_overflow(elements, size, &elements))
      return xt_tensor_desc_invalid(at, "shape overflows 64 bits", error);
  }
  if (__builtin_mul_overflow(elements, item, &bytes) || __builtin_mul_overflow(last, item, &step))
    return xt_tensor_desc_invalid(at, "shape overflows 64 bits", error);
  if (!empty && (uint64_t)bytes > storages->max_tensor_bytes)
    return xt_error_at(
        error, XT_STATUS_limit, at,
        "a tensor has %lld bytes, which exceeds the limit of %llu; raise it with limits: [tensor_bytes: n]",
        (long long)bytes, (unsigned long long)storages->max_tensor_bytes);
  if (t->storage == XT_NO_STORAGE) return XT_STATUS_ok;
  xt_storage *storage = &storages->list[t->storage];
  if (storage->alignment < item) storage->alignment = (uint8_t)item;
  int64_t room = (int64_t)(storage->bytes / (uint64_t)item);
  if (view && view->count >= 0 && view->start + view->count < room) room = view->start + view->count;
  /* An empty tensor may begin anywhere, as slices of slices do: none of its bytes are read. */
  if (!empty && last >= room) return xt_tensor_desc_invalid(at, "it extends past the end of its storage", error);
  return XT_STATUS_ok;
}

static bool reserve_dims(xt_tensor_desc *t, xt_arena *arena, uint32_t ndim) {
  t->ndim = ndim;
  t->sizes = xt_arena_alloc(arena, 2 * (size_t)ndim, sizeof *t->sizes);
  t->strides = t->sizes ? t->sizes + ndim : NULL;
  return t->sizes != NULL;
}

xt_status xt_tensor_desc_set_contiguous(xt_tensor_desc *t, xt_storages *storages, uint32_t storage, xt_dtype dtype,
                                        const int64_t *sizes, uint32_t ndim, bool column_major, int64_t at,
                                        xt_error *error) {
  int64_t step = 1;
  t->storage = storage;
  t->dtype = dtype;
  if (!reserve_dims(t, storages->arena, ndim)) return no_memory(error);
  for (uint32_t i = 0; i < ndim; i++) {
    uint32_t d = column_major ? i : ndim - 1 - i;
    t->sizes[d] = sizes[d];
    t->strides[d] = step;
    if (__builtin_mul_overflow(step, sizes[d] ? sizes[d] : 1, &step))
      return xt_tensor_desc_invalid(at, "shape overflows 64 bits", error);
  }
  return xt_tensor_desc_check(t, storages, NULL, at, error);
}

xt_status xt_tensor_desc_set_strided(xt_tensor_desc *t, xt_storages *storages, const xt_storage_view *view,
                                     int64_t offset, const int64_t *sizes, const int64_t *strides, uint32_t ndim,
                                     int64_t at, xt_error *error) {
  t->storage = view->index;
  t->dtype = storages->list[t->storage].dtype;
  if (!reserve_dims(t, storages->arena, ndim)) return no_memory(error);
  if (offset < 0 || __builtin_add_overflow(offset, view->start, &t->offset))
    return xt_tensor_desc_invalid(at, "offset is negative or overflows 64 bits", error);
  for (uint32_t d = 0; d < ndim; d++) {
    if (sizes[d] < 0 || strides[d] < 0) return xt_tensor_desc_invalid(at, "size or stride is negative", error);
    t->sizes[d] = sizes[d];
    t->strides[d] = strides[d];
  }
  return xt_tensor_desc_check(t, storages, view, at, error);
}
