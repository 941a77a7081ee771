/* The plan of a save: everything that is known before the first byte is written.
 *
 * Each tensor is one or several views of memory. In formats with a pickle, views that share memory share a payload:
 * xt_draft_begin → xt_draft_put_tensor for every tensor → xt_draft_finish (draft.h). In formats of named tensors every
 * tensor is a payload: xt_save_plan_add_named for every tensor → xt_save_plan_finish_named. */
#ifndef XT_CHECKPOINT_SAVE_PLAN_H
#define XT_CHECKPOINT_SAVE_PLAN_H

#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/sort.h"
#include "core/memory/arena.h"

/* A run of memory that is saved: a strided tensor, a part of a sparse or quantized one, or the bytes of a dtype that
 * LibTorch does not have. */
typedef struct {
  xt_dtype dtype;
  int ndim;
  const int64_t *sizes, *strides; /* in elements; valid as long as the owner */
  const uint8_t *data;            /* the first element */
  const uint8_t *storage;         /* the memory that is written for it; NULL if only the elements are known */
  uint64_t storage_bytes;
  xt_device device;
  bool staged;  /* not plain memory: fetched as contiguous elements when it is written */
  bool remote;  /* plain memory of another device: fetched in parts when it is written, shared like that of the CPU */
  bool untyped; /* its storage has no dtype and counts bytes */
  bool bare;    /* a storage outside a tensor: its payload must consist of exactly its elements */
  bool cast;    /* staged, because its memory has the dtype `from`; equal views share a payload */
  xt_dtype from;
  void *owner; /* keeps the memory in place until `drop` is called; not used if `drop` is NULL */
  void (*drop)(void *owner);

  /* set by the plan */
  size_t payload; /* number of its payload */
  int64_t offset; /* in the payload, in elements */
  bool alone;     /* shares its payload with no other view */
} xt_save_view;

typedef enum { XT_SAVE_STRIDED, XT_SAVE_META, XT_SAVE_SPARSE, XT_SAVE_QUANTIZED } xt_save_kind;

/* A tensor that is saved. */
typedef struct {
  xt_save_kind kind;
  xt_dtype dtype;
  uint8_t layout; /* xt_layout */
  bool requires_grad, coalesced;
  int ndim;
  const int64_t *sizes, *strides; /* of a sparse or meta tensor; needed only until it is put */
  double scale;
  int64_t zero_point, axis;
  int view_count;
  xt_save_view views[3]; /* strided: the tensor; sparse: indices and values; quantized: integers, scales, zero points */
} xt_save_tensor;

/* The data of one storage, or of one tensor in formats of named tensors. */
typedef struct {
  char key[24];
  xt_dtype dtype;
  int64_t numel;
  uint64_t bytes;
  const uint8_t *data; /* NULL if it is fetched when it is about to be written */
  size_t view;         /* index of a view of it */
} xt_payload;

struct xt_saver;

/* Writes the parts of a format around the payloads. `begin`, `before`, `after` and `end` append to the saver's output;
 * all but `begin` may be NULL. */
typedef struct {
  const char *name;
  bool crc;      /* `after` needs the CRC of the payload */
  bool sorted;   /* the payloads are in the order of their keys as strings */
  bool id_views; /* persistent ids end with a view, which is None */
  /* Only formats of named tensors, which have no pickle: returns what it is of a tensor that the format cannot
   * represent, or NULL. */
  const char *(*refuses)(const xt_save_tensor *tensor);
  bool (*accepts)(const char *name, size_t size); /* the same of a name, which is valid UTF-8; may be NULL */
  bool aligned; /* the tensors with the largest elements come first, so that all are aligned */
  void (*begin)(struct xt_saver *s);
  void (*before)(struct xt_saver *s, size_t payload);
  void (*after)(struct xt_saver *s, size_t payload, uint32_t crc);
  void (*end)(struct xt_saver *s);
} xt_format_writer;

typedef struct {
  /* set by the caller */
  const xt_format_writer *format;
  bool compact;     /* write the memory between the first and the last element of a view instead of its whole storage */
  const char *root; /* root directory of a zip file */

  xt_save_view *views;
  size_t view_count, view_room;
  xt_payload *payloads; /* in the order in which they are written */
  size_t count;
  xt_buffer pickle;
  xt_sort_name *names; /* of the views, in formats of named tensors */
  size_t name_room;
  xt_buffer metadata; /* keys and values in turn, each as a size_t and the text */
  xt_arena arena;     /* holds the texts of names and the payloads */
  bool reserved;      /* it also holds `views` and `names` */
} xt_save_plan;

/* Returns why the elements of a view are not all within its storage, or NULL. For views that come from users. */
const char *xt_save_view_problem(const xt_save_view *view);

/* Returns whether the elements of a view lie one after another. */
bool xt_save_view_is_contiguous(const xt_save_view *view);

/* Adds a view. Takes over its owner, also on failure. Returns false if out of memory. */
bool xt_save_plan_add(xt_save_plan *plan, const xt_save_view *view);

/* Creates the payloads of all views and assigns one to every view. The key of a payload is its number; they are not
 * sorted yet. */
xt_status xt_save_plan_share(xt_save_plan *plan, xt_error *error);

/* Makes room for this many tensors with names. */
bool xt_save_plan_reserve(xt_save_plan *plan, size_t count);

/* Adds a tensor to a format of named tensors. Takes over the owners of its views, also on failure. */
xt_status xt_save_plan_add_named(xt_save_plan *plan, const char *name, size_t size, const xt_save_tensor *tensor,
                                 xt_error *error);

/* Creates a payload for every tensor, in the order of the names, or of the element sizes first. Fails if two have the
 * same name, or share memory unless `duplicate`. */
xt_status xt_save_plan_finish_named(xt_save_plan *plan, bool duplicate, xt_error *error);

/* Adds a key or a value of the metadata. */
void xt_save_plan_put_metadata(xt_save_plan *plan, const void *text, size_t size);

/* Drops the owners of the views of a tensor that was not added to a plan. */
void xt_save_tensor_drop(const xt_save_tensor *tensor);

void xt_save_plan_free(xt_save_plan *plan);

#endif
