/* LibTorch behind a C interface. The .cpp files in this directory are the only C++ code.
 *
 * They are built as a separate library, extorch_torch.so, which nif/libtorch.c opens with dlopen when the NIF module
 * is loaded. A missing or a second LibTorch is therefore an error with a message instead of a crash in a static
 * constructor.
 *
 * Handles: an xt_tensor owns one reference to a LibTorch tensor and is itself reference counted. Every reference that
 * was created or kept must be released with xt_tensor_drop (nif/tensor.h). The last drop passes the handle to the
 * reaper thread, or frees it at once if it is `light`. The metadata of the tensor behind a handle never changes:
 * operators that would change it in place work on a shallow copy.
 *
 * No function throws or writes to stderr. A function that fails fills the error and returns its status.
 */
#ifndef XT_TORCH_TORCH_H
#define XT_TORCH_TORCH_H

#include "core/base/device.h"
#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/memory/arena.h"
#include "core/memory/frozen.h"
#include "core/memory/reaper.h"
#include "torch/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* xt_tensor_info.scheme */
enum { XT_SCHEME_NONE, XT_SCHEME_PER_TENSOR, XT_SCHEME_PER_CHANNEL, XT_SCHEME_OTHER };

/* Description of a tensor. Memory is `plain` if it is strided, has an address and holds the values themselves (no conj
 * or neg bit, not quantized). Only plain memory is exposed to binaries, blobs and other libraries. */
typedef struct {
  xt_dtype dtype;
  xt_device device;
  int ndim;
  const int64_t *sizes;
  const int64_t *strides; /* in elements; NULL for layouts without strides */
  int64_t numel;
  bool plain, contiguous;
  uint8_t layout;      /* c10::Layout, same numbers as xt_layout */
  uint8_t scheme;      /* quantization scheme, XT_SCHEME_* */
  void *data;          /* the first element; NULL if the tensor has no address */
  size_t span;         /* bytes from `data` to the end of the last element */
  const void *storage; /* the storage that the tensor is a view of */
  size_t storage_bytes;
} xt_tensor_info;

/* Reference-counted handle of a tensor. */
typedef struct xt_tensor {
  xt_reapable reapable; /* must be first: the reaper frees the handle through it */
  int references;       /* changed only by xt_tensor_keep and xt_tensor_drop */
  bool requires_grad;   /* stored beside the tensor, never passed to autograd */
  bool light;           /* freeing it is always fast; see xt_foreign */
  xt_tensor_info info;  /* filled once: the tensor's metadata never changes */
} xt_tensor;

static inline xt_tensor *xt_tensor_keep(xt_tensor *tensor) {
  __atomic_fetch_add(&tensor->references, 1, __ATOMIC_RELAXED);
  return tensor;
}

/* Memory owned by something else that becomes a tensor. `release(owner)` is called exactly once, on any thread: when
 * the last view of the memory is freed, or immediately if the tensor cannot be created. */
typedef struct {
  void *data;
  xt_dtype dtype;
  xt_device device;
  int ndim;
  const int64_t *sizes, *strides;
  void *owner;
  void (*release)(void *owner);
  bool light; /* `release` is fast enough to run on a scheduler thread */
} xt_foreign;

typedef struct {
  const char *name; /* "add", "aten::add" or "aten::add.Tensor" */
  const xt_value *args;
  size_t arg_count;
  const xt_named_value *kwargs;
  size_t kwarg_count;
} xt_op_call;

/* The place of a tensor in the memory that it is a view of. */
typedef struct {
  int ndim;
  const int64_t *sizes, *strides;
  int64_t offset; /* in elements */
} xt_tensor_layout;

/* A stager copies bytes to a device through a few host buffers of the same size, pinned if the backend of the device
 * has such memory. One thread at a time may use it.
 *
 *   take    sets *buffer to a free buffer, or to NULL if copies from all of them are in progress
 *   copy    starts the copy of a part of this buffer to a tensor of bytes, which the stager keeps until it is done
 *   pass    ends the use of this buffer; it is free again when its copies are done
 *   done    whether all copies are done; they may have failed
 *   free    waits for the copies that are in progress
 *
 * None but `free` waits for the device, unless the backend has no events: then each copy does. */
typedef struct xt_stager xt_stager;

/* ---- LibTorch archives ---- */

typedef struct {
  char *name; /* malloc'ed, not NUL-terminated */
  size_t name_size;
  xt_tensor *tensor; /* owned by the caller */
} xt_archive_item;

typedef struct {
  xt_archive_item *list; /* malloc'ed; the caller frees the list and the names */
  size_t count;
} xt_archive_items;

/* Callbacks of an archive. They are called one at a time, on the thread that saves or loads. `write` cannot fail: an
 * error inside LibTorch 1.13's writer would abort the VM. An implementation that cannot write must record the error and
 * discard the remaining data. */
typedef struct {
  void (*write)(void *context, const void *data, size_t size);
  bool (*read)(void *context, uint64_t at, void *to, size_t size);
  bool (*size)(void *context, uint64_t *size);
  void *context;
} xt_archive_io;

/* Functions of extorch.so that extorch_torch.so calls. */
typedef struct {
  size_t abi;          /* XT_TORCH_ABI of extorch.so; must match, since both libraries are built together */
  bool (*enter)(void); /* xt_exit_guard_enter; every call into LibTorch runs between enter and leave */
  void (*leave)(void);
  void *(*alloc)(size_t size); /* tensor memory, counted against the budget */
  void (*free)(void *block);
  xt_status (*alloc_status)(void); /* why the last `alloc` of this thread failed (limit or no_memory); resets to ok */
  bool (*write)(xt_frozen *node, const void *data, size_t size, bool lent); /* xt_frozen_write */
  void (*freeze)(xt_frozen *node, const void *data, size_t size);           /* xt_frozen_add */
  void (*unfreeze)(xt_frozen *node);                                        /* xt_frozen_remove */
  xt_writers (*writers)(const void *data, size_t size);                     /* xt_frozen_writers */
  void (*tensor_count)(int delta);
  void *(*arena_alloc)(xt_arena *arena, size_t count, size_t size);
  bool (*charge)(int64_t bytes); /* xt_memory_charge: host memory of another allocator */
  void (*discharge)(int64_t bytes);
  bool (*device_charge)(xt_device device, int64_t bytes); /* xt_device_memory_charge */
  void (*device_discharge)(xt_device device, int64_t bytes);
} xt_torch_host;

/* Functions of extorch_torch.so, or of plain/, which has tensors without LibTorch. */
typedef struct {
  const char *version; /* "2.6.0"; NULL without LibTorch (plain/) */
  void (*set_num_threads)(int threads);
  int (*num_threads)(void);
  bool (*has_dtype)(xt_dtype dtype);
  void (*manual_seed)(uint64_t seed);

  int (*device_count)(xt_device_type type); /* -1 if LibTorch has no backend of this type */
  const char *(*private_name)(void);        /* the name of XT_DEVICE_PRIVATE; NULL until it is registered */
  xt_status (*device_memory)(xt_device device, size_t *free, size_t *total, xt_error *error);
  xt_status (*device_synchronize)(xt_device device, xt_error *error);

  xt_status (*tensor_empty)(xt_dtype dtype, int ndim, const int64_t *sizes, xt_tensor **out, xt_error *error);
  xt_status (*tensor_foreign)(const xt_foreign *memory, xt_tensor **out, xt_error *error);

  /* Returns a second handle of the same tensor, with the given flag. */
  xt_status (*tensor_set_requires_grad)(const xt_tensor *tensor, bool requires_grad, xt_tensor **out, xt_error *error);

  /* Returns the values as plain, contiguous CPU memory. Copies only if the tensor is not already in that form. */
  xt_status (*tensor_plain)(const xt_tensor *tensor, xt_tensor **out, xt_error *error);

  /* Returns a copy converted to the dtype and device. */
  xt_status (*tensor_to)(const xt_tensor *tensor, xt_dtype dtype, xt_device device, xt_tensor **out, xt_error *error);

  /* Returns uninitialized memory of a device as a tensor of bytes. */
  xt_status (*tensor_bytes)(xt_device device, size_t size, xt_tensor **out, xt_error *error);

  /* Returns a view of a tensor of bytes. `offset` is in elements of the dtype. */
  xt_status (*tensor_view)(const xt_tensor *bytes, xt_dtype dtype, const xt_tensor_layout *layout, xt_tensor **out,
                           xt_error *error);

  /* Stagers; see above. */
  xt_status (*stager_new)(xt_device device, size_t size, int count, xt_stager **out, xt_error *error);
  xt_status (*stager_take)(xt_stager *stager, uint8_t **buffer, xt_error *error);
  xt_status (*stager_copy)(xt_stager *stager, size_t from, const xt_tensor *to, size_t at, size_t size,
                           xt_error *error);
  xt_status (*stager_pass)(xt_stager *stager, xt_error *error);
  xt_status (*stager_done)(xt_stager *stager, bool *done, xt_error *error);
  void (*stager_free)(xt_stager *stager);

  /* Compares shape, dtype and values. */
  xt_status (*tensor_equal)(const xt_tensor *a, const xt_tensor *b, bool *equal, xt_error *error);

  /* Calls an operator. The results are allocated in the arena; the caller owns the tensors among them. */
  xt_status (*op)(const xt_op_call *call, xt_arena *arena, xt_value **results, size_t *count, xt_error *error);

  /* torch::save and torch::load of named tensors. A dot in a name separates levels of nesting. */
  xt_status (*archive_save)(const xt_archive_item *items, size_t count, const xt_archive_io *io, xt_error *error);
  xt_status (*archive_load)(const xt_archive_io *io, xt_archive_items *out, xt_error *error);
} xt_torch_api;

#define XT_TORCH_ABI (sizeof(xt_tensor) * 1000003 + sizeof(xt_torch_api) * 1009 + sizeof(xt_torch_host))

/* The only symbol that extorch_torch.so exports. */
#define XT_TORCH_SYMBOL "xt_torch_open"
typedef xt_status xt_torch_open_fn(const xt_torch_host *host, const xt_torch_api **api, xt_error *error);
xt_torch_open_fn xt_torch_open;

#ifdef __cplusplus
}
#endif

#endif
