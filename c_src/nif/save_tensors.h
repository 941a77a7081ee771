/* The tensors of a term that is being saved, and the storages (payloads) that their bytes are written to.
 *
 *   xt_save_add for every tensor, in the order in which they occur → xt_save_plan → the payloads are known
 *
 * Tensors that share memory share a storage in the file. */
#ifndef XT_NIF_SAVE_TENSORS_H
#define XT_NIF_SAVE_TENSORS_H

#include <erl_nif.h>

#include "core/checkpoint/saver.h"
#include "core/memory/region.h"
#include "torch/torch.h"

/* A run of memory that is saved: a strided tensor or a part of a sparse or quantized one. */
typedef struct {
  xt_tensor *handle; /* an owned reference; NULL for the bytes of a binary */
  xt_dtype dtype;
  xt_device device;
  uintptr_t base; /* start of its storage; with `compact`, of the memory that it covers */
  uint64_t bytes;
  uintptr_t data; /* address of its first element */
  bool staged;    /* not plain CPU memory: converted to contiguous CPU memory when it is written */
  size_t payload; /* set by xt_save_plan */
  int64_t offset; /* in the payload, in elements */
} xt_save_view;

typedef enum { XT_SAVE_STRIDED, XT_SAVE_META, XT_SAVE_SPARSE, XT_SAVE_QUANTIZED } xt_save_kind;

/* How one tensor is saved. */
typedef struct {
  xt_save_kind kind;
  xt_tensor *tensor; /* valid as long as the list */
  size_t views[3];   /* strided: the tensor; sparse: indices and values; quantized: integers, scales, zero points */
  int view_count;
  bool coalesced;
  double scale;
  int64_t zero_point, axis;
} xt_save_tensor;

typedef struct {
  bool compact;
  xt_save_view *views;
  size_t view_count, view_room;
  xt_tensor **others; /* owned references to the tensors that have no view of their own: sparse, quantized, meta */
  size_t other_count, other_room;
  xt_payload *payloads;
  size_t payload_count;
  size_t *payload_view; /* for each payload, the index of a view of it */
  ErlNifEnv *binaries;  /* holds the binaries of xt_save_add_bytes */
} xt_save_tensors;

/* Adds a tensor. Takes ownership of the reference to it, also on failure. */
xt_status xt_save_add(xt_save_tensors *s, xt_tensor *tensor, xt_save_tensor *out, xt_error *error);

/* Adds the bytes of a tensor whose dtype the linked LibTorch does not have. They become the last view of the list. */
xt_status xt_save_add_bytes(xt_save_tensors *s, ERL_NIF_TERM binary, xt_dtype dtype, xt_error *error);

/* Creates the payloads and assigns one to every view. The key of a payload is its number. */
xt_status xt_save_plan(xt_save_tensors *s, xt_error *error);

/* Sorts the payloads by their keys as strings, for formats that need this order. */
xt_status xt_save_sort(xt_save_tensors *s, xt_error *error);

/* Converts the staged view of a payload to plain contiguous CPU memory. The caller drops *staged. */
xt_status xt_save_fetch(xt_save_tensors *s, size_t payload, xt_tensor **staged, const uint8_t **data, xt_error *error);

void xt_save_free(xt_save_tensors *s);

#endif
