/* The pickle of an object with tensors, while it is being written. Tensors that share memory share a storage, so the
 * storage of a tensor is known only when all tensors are. Until then the draft has a gap for it.
 *
 *   xt_draft_begin → xt_draft_put_tensor, and the pickler's functions for all other values → xt_draft_finish
 *
 * This way the object is walked only once, and each tensor is visited only once: a save of many small tensors spends
 * most of its time waiting for memory. */
#ifndef XT_CHECKPOINT_DRAFT_H
#define XT_CHECKPOINT_DRAFT_H

#include "core/checkpoint/save_plan.h"
#include "core/pickle/pickler.h"

/* Where key, location and size of a storage belong, and the offset in it. */
typedef struct {
  size_t at;   /* offset in the pickle */
  size_t view; /* index in the plan */
} xt_draft_gap;

/* A memo entry for an object that was found to need one only after it was written. */
typedef struct {
  size_t at; /* offset in the pickle */
  uint32_t memo;
} xt_draft_put;

/* If memory runs out, `pickle.out.failed` is set and the finish fails. */
typedef struct {
  xt_pickler pickle;
  xt_save_plan *plan;
  xt_draft_gap *gaps;
  size_t count, room;
  xt_draft_put *puts;
  size_t put_count, put_room;
} xt_draft;

/* The format of the plan must have a pickle. */
void xt_draft_begin(xt_draft *draft, xt_save_plan *plan);

/* Writes a tensor and adds its views to the plan. Takes over their owners. */
void xt_draft_put_tensor(xt_draft *draft, const xt_save_tensor *tensor);

/* Writes a storage outside a tensor: a view that is bare, contiguous and has one dimension. */
void xt_draft_put_storage(xt_draft *draft, const xt_save_view *view);

/* Writes only the function that rebuilds the tensor, or only the tuple of its arguments. The views are those of the
 * arguments. */
void xt_draft_put_function(xt_draft *draft, const xt_save_tensor *tensor);
void xt_draft_put_arguments(xt_draft *draft, const xt_save_tensor *tensor);

/* Memoizes the object that is complete at this offset of the pickle and returns its memo index. */
uint32_t xt_draft_memoize(xt_draft *draft, size_t at);

/* Creates the payloads and the pickle of the plan. */
xt_status xt_draft_finish(xt_draft *draft, xt_error *error);

void xt_draft_free(xt_draft *draft);

#endif
