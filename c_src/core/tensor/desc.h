/* Descriptions of tensors: dtype, shape and place in a storage. */
#ifndef XT_TENSOR_DESC_H
#define XT_TENSOR_DESC_H

#include "core/base/layout.h"
#include "core/tensor/storages.h"

/* Describes a tensor. Sizes, strides and offset count elements of the storage.
 *
 * A sparse tensor has no storage of its own, but parts: indices and values (COO), or compressed indices, plain indices
 * and values. A tensor that is quantized per channel has a storage, and its scales and zero points as parts. */
typedef struct xt_tensor_desc {
  xt_dtype dtype;
  uint32_t storage; /* index; XT_NO_STORAGE for meta and sparse tensors */
  uint32_t ndim;
  int64_t offset;
  int64_t *sizes, *strides;
  bool requires_grad, parameter, conj, neg, quantized;
  bool bare;      /* it stands for a storage outside a tensor */
  uint8_t layout; /* xt_layout */
  uint8_t part_count;
  uint32_t first_entry;         /* 1 + index of the first entry of this tensor; set while the index is built */
  struct xt_tensor_parts *more; /* of sparse and quantized tensors; NULL for others */
} xt_tensor_desc;

typedef struct xt_tensor_parts {
  const xt_tensor_desc *parts[3];
  double scale;
  int64_t zero_point, axis;
} xt_tensor_parts;

enum { XT_NO_STORAGE = UINT32_MAX };

/* A part of a storage, in elements; `count` is -1 for the whole storage. */
typedef struct {
  int64_t start, count;
  uint32_t index; /* of the storage */
} xt_storage_view;

/* In all functions, `at` is the offset that an error reports. */

/* Sets the error "invalid tensor: …" and returns its status. */
xt_status xt_tensor_desc_invalid(int64_t at, const char *what, xt_error *error);

/* Checks that a tensor lies inside its storage, or inside a view of it unless that is NULL, and that its logical bytes
 * do not exceed the limit. */
xt_status xt_tensor_desc_check(const xt_tensor_desc *tensor, xt_storages *storages, const xt_storage_view *view,
                               int64_t at, xt_error *error);

/* Describes a contiguous tensor of a whole storage, in row-major or column-major (Fortran) order. */
xt_status xt_tensor_desc_set_contiguous(xt_tensor_desc *tensor, xt_storages *storages, uint32_t storage, xt_dtype dtype,
                                        const int64_t *sizes, uint32_t ndim, bool column_major, int64_t at,
                                        xt_error *error);

/* Describes a tensor with its strides in a view of a storage. */
xt_status xt_tensor_desc_set_strided(xt_tensor_desc *tensor, xt_storages *storages, const xt_storage_view *view,
                                     int64_t offset, const int64_t *sizes, const int64_t *strides, uint32_t ndim,
                                     int64_t at, xt_error *error);

#endif
