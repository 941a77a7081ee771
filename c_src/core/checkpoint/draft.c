#include "core/checkpoint/draft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/array.h"
#include "core/tensor/desc.h"

void xt_draft_begin(xt_draft *d, xt_save_plan *plan) {
  *d = (xt_draft){.plan = plan};
  xt_pickler_begin(&d->pickle);
}

void xt_draft_free(xt_draft *d) {
  xt_pickler_free(&d->pickle);
  free(d->gaps);
  free(d->puts);
}

/* ---- Views ---- */

static void put_dims(xt_pickler *p, const int64_t *dims, int ndim) {
  if (ndim > 3) xt_pickler_put_mark(p);
  for (int d = 0; d < ndim; d++) xt_pickler_put_int(p, dims[d]);
  if (ndim > 3) xt_pickler_put_tuple(p);
  else xt_pickler_put_tuple_of(p, ndim);
}

/* Staged views are contiguous when they are written. */
static void put_strides(xt_pickler *p, const xt_save_view *view) {
  int64_t contiguous[XT_MAX_DIMS], step = 1;
  for (int d = view->ndim; view->staged && d-- > 0;) {
    contiguous[d] = step;
    step *= view->sizes[d] ? view->sizes[d] : 1;
  }
  put_dims(p, view->staged ? contiguous : view->strides, view->ndim);
}

/* Writes ('storage', class, …) with a gap for the rest of it and for the offset. */
static void put_storage(xt_draft *d, const xt_save_view *view, const char *class) {
  xt_pickler *p = &d->pickle;
  xt_pickler_put_mark(p);
  xt_pickler_put_text(p, "storage", 7);
  xt_pickler_put_global(p, class ? class : "torch.storage\nUntypedStorage\n");
  bool reserved = xt_array_reserve(&d->gaps, &d->room, d->count + 1, sizeof *d->gaps);
  if (reserved) d->gaps[d->count] = (xt_draft_gap){p->out.size, d->plan->view_count};
  if (!xt_save_plan_add(d->plan, view) || !reserved) p->out.failed = true;
  else d->count++;
}

/* Writes storage, offset, size and stride. */
static void put_view(xt_draft *d, const xt_save_view *view, const char *class) {
  put_storage(d, view, class);
  put_dims(&d->pickle, view->sizes, view->ndim);
  put_strides(&d->pickle, view);
}

/* ---- Tensors ---- */

static const char *storage_class(const xt_save_view *view) {
  return view->untyped ? NULL : xt_pickler_storage_class(view->dtype);
}

static const char *rebuild_function(const xt_save_view *view) {
  return storage_class(view) ? "torch._utils\n_rebuild_tensor_v2\n" : "torch._utils\n_rebuild_tensor_v3\n";
}

static void put_hooks(xt_pickler *p) {
  xt_pickler_put_global(p, "collections\nOrderedDict\n");
  xt_pickler_put_tuple_of(p, 0);
  xt_pickler_put_reduce(p);
}

static void put_strided(xt_draft *d, const xt_save_view *view, bool requires_grad) {
  const char *class = storage_class(view);
  xt_pickler_put_mark(&d->pickle);
  put_view(d, view, class);
  xt_pickler_put_bool(&d->pickle, requires_grad);
  put_hooks(&d->pickle);
  if (!class) xt_pickler_put_dtype(&d->pickle, view->dtype);
  xt_pickler_put_tuple(&d->pickle);
}

static void put_part(xt_draft *d, const xt_save_view *view) {
  xt_pickler_put_global(&d->pickle, rebuild_function(view));
  put_strided(d, view, false);
  xt_pickler_put_reduce(&d->pickle);
}

static void put_meta(xt_pickler *p, const xt_save_tensor *t) {
  xt_pickler_put_dtype(p, t->dtype);
  put_dims(p, t->sizes, t->ndim);
  put_dims(p, t->strides, t->ndim);
  xt_pickler_put_bool(p, t->requires_grad);
}

/* Writes the layout and (indices, values, size, coalesced) or (compressed indices, plain indices, values, size). */
static void put_sparse(xt_draft *d, const xt_save_tensor *t) {
  xt_pickler *p = &d->pickle;
  char layout[32];
  int size = snprintf(layout, sizeof layout, "torch.%s", xt_layout_name(t->layout));
  xt_pickler_put_global(p, "torch.serialization\n_get_layout\n");
  xt_pickler_put_text(p, layout, (size_t)size);
  xt_pickler_put_tuple_of(p, 1);
  xt_pickler_put_reduce(p);
  xt_pickler_put_mark(p);
  for (int i = 0; i < t->view_count; i++) put_part(d, &t->views[i]);
  xt_pickler_put_global(p, "torch\nSize\n");
  put_dims(p, t->sizes, t->ndim);
  xt_pickler_put_tuple_of(p, 1);
  xt_pickler_put_reduce(p);
  if (t->layout == XT_LAYOUT_COO) xt_pickler_put_bool(p, t->coalesced);
  xt_pickler_put_tuple(p);
}

static void put_quantized(xt_draft *d, const xt_save_tensor *t) {
  xt_pickler *p = &d->pickle;
  put_view(d, &t->views[0], xt_pickler_storage_class(t->dtype));
  if (t->view_count > 1) {
    xt_pickler_put_mark(p);
    xt_pickler_put_global(p, "torch\nper_channel_affine\n");
    put_part(d, &t->views[1]);
    put_part(d, &t->views[2]);
    xt_pickler_put_int(p, t->axis);
    xt_pickler_put_tuple(p);
  } else {
    xt_pickler_put_global(p, "torch\nper_tensor_affine\n");
    xt_pickler_put_float(p, t->scale);
    xt_pickler_put_int(p, t->zero_point);
    xt_pickler_put_tuple_of(p, 3);
  }
  xt_pickler_put_bool(p, t->requires_grad);
  put_hooks(p);
}

void xt_draft_put_function(xt_draft *d, const xt_save_tensor *t) {
  const char *name = NULL;
  switch (t->kind) {
  case XT_SAVE_META: name = "torch._utils\n_rebuild_meta_tensor_no_storage\n"; break;
  case XT_SAVE_SPARSE: name = "torch._utils\n_rebuild_sparse_tensor\n"; break;
  case XT_SAVE_QUANTIZED: name = "torch._utils\n_rebuild_qtensor\n"; break;
  case XT_SAVE_STRIDED: name = rebuild_function(&t->views[0]); break;
  }
  xt_pickler_put_global(&d->pickle, name);
}

void xt_draft_put_arguments(xt_draft *d, const xt_save_tensor *t) {
  if (t->kind == XT_SAVE_STRIDED) {
    put_strided(d, &t->views[0], t->requires_grad);
    return;
  }
  xt_pickler_put_mark(&d->pickle);
  if (t->kind == XT_SAVE_META) put_meta(&d->pickle, t);
  else if (t->kind == XT_SAVE_SPARSE) put_sparse(d, t);
  else put_quantized(d, t);
  xt_pickler_put_tuple(&d->pickle);
}

void xt_draft_put_tensor(xt_draft *d, const xt_save_tensor *t) {
  xt_draft_put_function(d, t);
  xt_draft_put_arguments(d, t);
  xt_pickler_put_reduce(&d->pickle);
}

void xt_draft_put_storage(xt_draft *d, const xt_save_view *view) { put_storage(d, view, storage_class(view)); }

/* ---- The gaps ---- */

enum { GAP_BYTES = 40 }; /* the typical size of a filled gap */

static void put_location(xt_pickler *p, xt_device device) {
  char text[XT_DEVICE_NAME + 16] = "cpu";
  if (device.type != XT_DEVICE_CPU) xt_device_location(device, text, sizeof text);
  xt_pickler_put_text(p, text, strlen(text));
}

/* Fills the part between the bars: ('storage', class, | key, location, numel[, None]) PERSISTENT offset |
 * A storage outside a tensor has no offset. */
static void fill_gap(xt_pickler *p, const xt_save_plan *plan, const xt_save_view *view) {
  const xt_payload *payload = &plan->payloads[view->payload];
  xt_pickler_put_text(p, payload->key, strlen(payload->key));
  put_location(p, view->device);
  xt_pickler_put_int(p, payload->numel);
  if (plan->format->id_views) xt_pickler_put_none(p);
  xt_pickler_put_tuple(p);
  xt_pickler_put_persistent(p);
  if (!view->bare) xt_pickler_put_int(p, view->offset);
}

/* ---- The memo ---- */

uint32_t xt_draft_memoize(xt_draft *d, size_t at) {
  uint32_t memo = d->pickle.memo++;
  if (!xt_array_reserve(&d->puts, &d->put_room, d->put_count + 1, sizeof *d->puts)) d->pickle.out.failed = true;
  else d->puts[d->put_count++] = (xt_draft_put){at, memo};
  return memo;
}

static int by_offset(const void *a, const void *b) {
  const xt_draft_put *x = a, *y = b;
  return x->at < y->at ? -1 : x->at > y->at;
}

/* Copies the draft from *at to `end`, with the memo entries of the objects between. */
static void copy(const xt_draft *d, size_t *at, size_t end, size_t *next, xt_buffer *out) {
  const uint8_t *data = d->pickle.out.data;
  for (; *next < d->put_count && d->puts[*next].at <= end; ++*next) {
    xt_buffer_put(out, data + *at, d->puts[*next].at - *at);
    *at = d->puts[*next].at;
    xt_buffer_byte(out, XT_OP_LONG_BINPUT);
    xt_buffer_le(out, d->puts[*next].memo, 4);
  }
  xt_buffer_put(out, data + *at, end - *at);
  *at = end;
}

static int by_key(const void *a, const void *b) {
  return strcmp(((const xt_payload *)a)->key, ((const xt_payload *)b)->key);
}

/* Memory of a storage can be part of larger memory that another owner shares. */
static xt_status check_storages(const xt_save_plan *plan, xt_error *error) {
  for (size_t i = 0; i < plan->view_count; i++) {
    const xt_save_view *view = &plan->views[i];
    if (view->bare && (view->offset || plan->payloads[view->payload].bytes != view->storage_bytes))
      return xt_error_set(error, XT_STATUS_bad_argument,
                          "cannot save term: a storage shares memory with a tensor that extends past it; save a copy "
                          "of one of them");
  }
  return XT_STATUS_ok;
}

xt_status xt_draft_finish(xt_draft *d, xt_error *error) {
  const xt_buffer *draft = &d->pickle.out;
  xt_save_plan *plan = d->plan;
  xt_pickler whole = {0};
  size_t at = 0, next = 0;
  xt_pickler_stop(&d->pickle);
  xt_status status = xt_save_plan_share(plan, error);
  if (status == XT_STATUS_ok) status = check_storages(plan, error);
  if (status != XT_STATUS_ok) return status;
  xt_buffer_reserve(&whole.out, draft->size + d->count * GAP_BYTES);
  if (d->put_count) qsort(d->puts, d->put_count, sizeof *d->puts, by_offset);
  for (size_t i = 0; i < d->count; i++) {
    copy(d, &at, d->gaps[i].at, &next, &whole.out);
    fill_gap(&whole, plan, &plan->views[d->gaps[i].view]);
  }
  copy(d, &at, draft->size, &next, &whole.out);
  plan->pickle = whole.out;
  if (plan->format->sorted) qsort(plan->payloads, plan->count, sizeof *plan->payloads, by_key);
  if (!draft->failed && !whole.out.failed) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while writing the pickle");
}
