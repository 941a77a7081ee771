/* LibTorch behind plain C. The .cpp files here are the only ones that know C++.
 *
 * It is built as a library of its own, extorch_torch.so, which nif.c opens when the NIF is loaded: so a missing or
 * second LibTorch is an error with a name instead of a crash in somebody's static constructor.
 *
 * Handles: an xt_tensor owns one reference to a LibTorch tensor and is counted itself. Whoever made or kept one gives
 * it back with xt_tensor_drop; the last goes to the reaper's thread, where it is freed, unless that is quickly done.
 * The metadata of a tensor behind a handle never changes: operators that would change it work on a shallow copy.
 *
 * No function throws and none writes to stderr; a failing one fills the error and returns its status.
 */
#ifndef XT_TORCH_TORCH_H
#define XT_TORCH_TORCH_H

#include "core/base/arena.h"
#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/memory/reaper.h"
#include "torch/value.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { XT_DEVICE_CPU, XT_DEVICE_CUDA, XT_DEVICE_MPS, XT_DEVICE_META, XT_DEVICE_OTHER } xt_device_type;

typedef struct {
  xt_device_type type;
  int index; /* -1: none was named */
} xt_device;

/* What a tensor is. `plain` memory is strided, holds its values as they are (no conj or neg bit, not quantized) and
 * has an address: only such memory is handed out. */
typedef struct {
  xt_dtype dtype;
  xt_device device;
  int ndim;
  const int64_t *sizes;
  const int64_t *strides; /* in elements; NULL for layouts that have none */
  int64_t numel;
  bool plain, contiguous;
  uint8_t layout;      /* c10::Layout, as xt_layout */
  uint8_t scheme;      /* 0: not quantized, 1: per tensor, 2: per channel, 3: otherwise */
  void *data;          /* the first element, when it has an address; handed out only when plain */
  size_t span;         /* bytes from it to the end of the last element */
  const void *storage; /* the whole memory that it is a view of */
  size_t storage_bytes;
} xt_tensor_info;

/* A counted handle. What it points to never changes, so `info` is filled once. */
typedef struct xt_tensor {
  xt_reapable reapable; /* first: the reaper frees the whole */
  int references;       /* by keep and drop only */
  bool requires_grad;   /* kept beside the tensor, never given to autograd */
  bool light;           /* freeing it never takes long: see xt_foreign */
  xt_tensor_info info;
} xt_tensor;

static inline xt_tensor *xt_tensor_keep(xt_tensor *tensor) {
  __atomic_fetch_add(&tensor->references, 1, __ATOMIC_RELAXED);
  return tensor;
}

/* Memory that becomes a tensor: `release(owner)` is called once, on any thread, when the last view of it is gone, or at
 * once when no tensor can be made. */
typedef struct {
  void *data;
  xt_dtype dtype;
  xt_device device;
  int ndim;
  const int64_t *sizes, *strides;
  void *owner;
  void (*release)(void *owner);
  bool light; /* release returns at once, so a scheduler may call it */
} xt_foreign;

typedef struct {
  const char *name; /* "add", "aten::add", "aten::add.Tensor" */
  const xt_value *args;
  size_t arg_count;
  const xt_named_value *kwargs;
  size_t kwarg_count;
} xt_op_call;

/* ---- LibTorch's own archives ---- */

typedef struct {
  char *name;
  size_t name_size;
  xt_tensor *tensor; /* the caller's */
} xt_archive_item;

typedef struct {
  xt_archive_item *list; /* malloc'ed, as the names are: xt_archive_items_free */
  size_t count;
} xt_archive_items;

/* Called on the thread that saves or loads, one at a time. A write never fails here: LibTorch 1.13 would end the VM.
 * Who cannot write remembers it, and swallows the rest. */
typedef struct {
  void (*write)(void *context, const void *data, size_t size);
  bool (*read)(void *context, uint64_t at, void *to, size_t size);
  bool (*size)(void *context, uint64_t *size);
  void *context;
} xt_archive_io;

/* What the floors below offer to this one. */
typedef struct {
  size_t abi;          /* XT_TORCH_ABI of the other side: the two libraries are built together */
  bool (*enter)(void); /* xt_exit_guard_enter and its twin: every call is between them */
  void (*leave)(void);
  void *(*alloc)(size_t size); /* tensor memory */
  void (*free)(void *block);
  int (*refused)(void); /* xt_refused */
  bool (*is_frozen)(const void *data, size_t size);
  void (*tensor_count)(int delta);
  void *(*arena_alloc)(xt_arena *arena, size_t count, size_t size);
} xt_torch_host;

typedef struct {
  const char *version; /* "2.6.0" */
  void (*set_num_threads)(int threads);
  int (*num_threads)(void);
  bool (*has_dtype)(xt_dtype dtype);
  int (*cuda_count)(void);
  bool (*has_mps)(void);
  xt_status (*cuda_memory)(int index, size_t *free, size_t *total, xt_error *error);
  void (*manual_seed)(uint64_t seed);

  xt_status (*tensor_empty)(xt_dtype dtype, int ndim, const int64_t *sizes, xt_tensor **out, xt_error *error);
  xt_status (*tensor_foreign)(const xt_foreign *memory, xt_tensor **out, xt_error *error);

  /* Another handle of the same tensor, for another mark. */
  xt_status (*tensor_mark)(const xt_tensor *tensor, bool requires_grad, xt_tensor **out, xt_error *error);

  /* The same values as plain, contiguous CPU memory: the tensor itself where it is that already. */
  xt_status (*tensor_plain)(const xt_tensor *tensor, xt_tensor **out, xt_error *error);

  /* A copy converted to dtype and device. */
  xt_status (*tensor_to)(const xt_tensor *tensor, xt_dtype dtype, xt_device device, xt_tensor **out, xt_error *error);

  /* Equal shape, dtype and values. */
  xt_status (*tensor_equal)(const xt_tensor *a, const xt_tensor *b, bool *equal, xt_error *error);

  /* Results live in the arena; the tensors among them are the caller's. */
  xt_status (*op)(const xt_op_call *call, xt_arena *arena, xt_value **results, size_t *count, xt_error *error);

  /* torch::save and torch::load of named tensors; a dot in a name is a level of nesting. */
  xt_status (*archive_save)(const xt_archive_item *items, size_t count, const xt_archive_io *io, xt_error *error);
  xt_status (*archive_load)(const xt_archive_io *io, xt_archive_items *out, xt_error *error);
} xt_torch_api;

#define XT_TORCH_ABI (sizeof(xt_tensor) * 1000003 + sizeof(xt_torch_api) * 1009 + sizeof(xt_torch_host))

/* The one symbol of extorch_torch.so. */
#define XT_TORCH_SYMBOL "xt_torch_open"
typedef xt_status xt_torch_open_fn(const xt_torch_host *host, const xt_torch_api **api, xt_error *error);
xt_torch_open_fn xt_torch_open;

#ifdef __cplusplus
}
#endif

#endif
