/* The tensors of a term that is being saved: what each is made of, and which bytes are written once for several.
 *
 *   xt_save_add for every tensor, in the order they are met → xt_save_plan → their payloads are known
 *
 * Tensors over the same memory share a storage in the file, as they do in memory. */
#ifndef XT_NIF_SAVE_TENSORS_H
#define XT_NIF_SAVE_TENSORS_H

#include <erl_nif.h>

#include "core/checkpoint/saver.h"
#include "core/memory/region.h"
#include "torch/torch.h"

/* Where a strided tensor lies once it is saved. */
typedef struct {
  xt_tensor *handle; /* kept; NULL: bytes of a binary */
  xt_dtype dtype;
  xt_device device;
  uintptr_t base; /* of its storage, or of what it sees when compact */
  uint64_t bytes;
  uintptr_t data; /* its first element */
  bool staged;    /* not plain CPU memory: brought there when its turn comes, contiguous */
  size_t payload;
  int64_t offset; /* elements */
} xt_save_view;

typedef enum { XT_SAVE_STRIDED, XT_SAVE_META, XT_SAVE_SPARSE, XT_SAVE_QUANTIZED } xt_save_kind;

/* What one tensor turned out to be. */
typedef struct {
  xt_save_kind kind;
  xt_tensor *tensor; /* lives as long as the list */
  size_t views[3];   /* strided: itself; sparse: indices and values; quantized: integers, scales, zero points */
  int view_count;
  bool coalesced;
  double scale;
  int64_t zero_point, axis;
} xt_save_tensor;

typedef struct {
  bool compact;
  xt_save_view *views;
  size_t view_count, view_room;
  xt_tensor **others; /* kept: tensors that are no view themselves, but made of some */
  size_t other_count, other_room;
  xt_payload *payloads;
  size_t payload_count;
  size_t *payload_view; /* a view of each payload */
  ErlNifEnv *binaries;  /* keeps those that are written */
} xt_save_tensors;

/* The tensor's own handle is taken over whatever happens. */
xt_status xt_save_add(xt_save_tensors *s, xt_tensor *tensor, xt_save_tensor *out, xt_error *error);

/* Bytes that have no tensor: a dtype that the linked LibTorch lacks. They are the list's last view then. */
xt_status xt_save_add_bytes(xt_save_tensors *s, ERL_NIF_TERM binary, xt_dtype dtype, xt_error *error);

/* Gives every view its payload, whose key is its number. */
xt_status xt_save_plan(xt_save_tensors *s, xt_error *error);

/* Afterwards, where the file wants it: payloads in the order of their keys as text. */
xt_status xt_save_sort(xt_save_tensors *s, xt_error *error);

/* The writer's fetch: plain contiguous memory of a staged view, kept until done. */
xt_status xt_save_fetch(xt_save_tensors *s, size_t payload, xt_tensor **staged, const uint8_t **data, xt_error *error);

void xt_save_free(xt_save_tensors *s);

#endif
