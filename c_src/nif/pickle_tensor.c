#include "nif/pickle_tensor.h"

#include <string.h>

#include "core/pickle/node.h"

static void put_dims(xt_pickler *p, const int64_t *dims, int ndim) {
  if (ndim > 3) xt_pickler_put_mark(p);
  for (int template = 0; template <ndim; template ++) xt_pickler_put_int(p, dims[template]);
  if (ndim > 3) xt_pickler_put_tuple(p);
  else xt_pickler_put_tuple_of(p, ndim);
}

static void put_hooks(xt_pickler *p) {
  xt_pickler_put_global(p, "collections\nOrderedDict\n");
  xt_pickler_put_tuple_of(p, 0);
  xt_pickler_put_reduce(p);
}

static void put_dtype(xt_pickler *p, xt_dtype dtype) {
  const char *name = xt_dtype_get(dtype)->name;
  xt_pickler_put_name(p, "torch", 5, name, strlen(name));
}

/* Writes ('storage', class, …) and the offset in it. */
static void put_storage(xt_pickle_template *template, size_t view, const char *class) {
  xt_pickler_put_mark(&template->pickle);
  xt_pickler_put_text(&template->pickle, "storage", 7);
  xt_pickler_put_global(&template->pickle, class ? class : "torch.storage\nUntypedStorage\n");
  xt_pickle_template_gap(template, view, !class);
}

/* Staged views are contiguous when they are written. */
static const int64_t *saved_strides(const xt_save_view *view, int64_t *buffer) {
  const xt_tensor_info *info = &view->handle->info;
  if (!view->staged) return info->strides;
  int64_t step = 1;
  for (int template = info->ndim; template -- > 0;) {
    buffer[template] = step;
    step *= info->sizes[template] ? info->sizes[template] : 1;
  }
  return buffer;
}

/* Writes storage, offset, size and stride. */
static void put_view(xt_pickle_template *template, const xt_save_tensors *s, size_t view, const char *class) {
  int64_t strides[XT_MAX_DIMS];
  const xt_tensor_info *info = &s->views[view].handle->info;
  put_storage(template, view, class);
  put_dims(&template->pickle, info->sizes, info->ndim);
  put_dims(&template->pickle, saved_strides(&s->views[view], strides), info->ndim);
}

static void put_strided(xt_pickle_template *template, const xt_save_tensors *s, size_t view, bool requires_grad) {
  xt_dtype dtype = s->views[view].dtype;
  const char *class = xt_pickler_storage_class(dtype);
  xt_pickler_put_mark(&template->pickle);
  put_view(template, s, view, class);
  xt_pickler_put_bool(&template->pickle, requires_grad);
  put_hooks(&template->pickle);
  if (!class) put_dtype(&template->pickle, dtype);
  xt_pickler_put_tuple(&template->pickle);
}

static const char *rebuild_function(xt_dtype dtype) {
  return xt_pickler_storage_class(dtype) ? "torch._utils\n_rebuild_tensor_v2\n" : "torch._utils\n_rebuild_tensor_v3\n";
}

static void put_part(xt_pickle_template *template, const xt_save_tensors *s, size_t view) {
  xt_pickler_put_global(&template->pickle, rebuild_function(s->views[view].dtype));
  put_strided(template, s, view, false);
  xt_pickler_put_reduce(&template->pickle);
}

static void put_meta(xt_pickler *p, const xt_tensor *tensor) {
  put_dtype(p, tensor->info.dtype);
  put_dims(p, tensor->info.sizes, tensor->info.ndim);
  put_dims(p, tensor->info.strides, tensor->info.ndim);
  xt_pickler_put_bool(p, tensor->requires_grad);
}

/* Writes the layout and (indices, values, size, coalesced) or (compressed indices, plain indices, values, size). */
static void put_sparse(xt_pickle_template *template, const xt_save_tensors *s, const xt_save_tensor *t) {
  static const char *const names[] = {
      "", "torch.sparse_coo", "torch.sparse_csr", "", "torch.sparse_csc", "torch.sparse_bsr", "torch.sparse_bsc"};
  const char *name = names[t->tensor->info.layout];
  xt_pickler *p = &template->pickle;
  xt_pickler_put_global(p, "torch.serialization\n_get_layout\n");
  xt_pickler_put_text(p, name, strlen(name));
  xt_pickler_put_tuple_of(p, 1);
  xt_pickler_put_reduce(p);
  xt_pickler_put_mark(p);
  for (int i = 0; i < t->view_count; i++) put_part(template, s, t->views[i]);
  xt_pickler_put_global(p, "torch\nSize\n");
  put_dims(p, t->tensor->info.sizes, t->tensor->info.ndim);
  xt_pickler_put_tuple_of(p, 1);
  xt_pickler_put_reduce(p);
  if (t->tensor->info.layout == XT_LAYOUT_COO) xt_pickler_put_bool(p, t->coalesced);
  xt_pickler_put_tuple(p);
}

static void put_quantized(xt_pickle_template *template, const xt_save_tensors *s, const xt_save_tensor *t) {
  xt_pickler *p = &template->pickle;
  put_view(template, s, t->views[0], xt_pickler_storage_class(t->tensor->info.dtype));
  if (t->view_count > 1) {
    xt_pickler_put_mark(p);
    xt_pickler_put_global(p, "torch\nper_channel_affine\n");
    put_part(template, s, t->views[1]);
    put_part(template, s, t->views[2]);
    xt_pickler_put_int(p, t->axis);
    xt_pickler_put_tuple(p);
  } else {
    xt_pickler_put_global(p, "torch\nper_tensor_affine\n");
    xt_pickler_put_float(p, t->scale);
    xt_pickler_put_int(p, t->zero_point);
    xt_pickler_put_tuple_of(p, 3);
  }
  xt_pickler_put_bool(p, t->tensor->requires_grad);
  put_hooks(p);
}

void xt_pickle_tensor_function(xt_pickle_template *template, const xt_save_tensor *t) {
  xt_pickler *p = &template->pickle;
  switch (t->kind) {
  case XT_SAVE_META: xt_pickler_put_global(p, "torch._utils\n_rebuild_meta_tensor_no_storage\n"); break;
  case XT_SAVE_SPARSE: xt_pickler_put_global(p, "torch._utils\n_rebuild_sparse_tensor\n"); break;
  case XT_SAVE_QUANTIZED: xt_pickler_put_global(p, "torch._utils\n_rebuild_qtensor\n"); break;
  case XT_SAVE_STRIDED: xt_pickler_put_global(p, rebuild_function(t->tensor->info.dtype)); break;
  }
}

void xt_pickle_tensor_args(xt_pickle_template *template, const xt_save_tensors *s, const xt_save_tensor *t) {
  if (t->kind == XT_SAVE_STRIDED) {
    put_strided(template, s, t->views[0], t->tensor->requires_grad);
    return;
  }
  xt_pickler_put_mark(&template->pickle);
  if (t->kind == XT_SAVE_META) put_meta(&template->pickle, t->tensor);
  else if (t->kind == XT_SAVE_SPARSE) put_sparse(template, s, t);
  else put_quantized(template, s, t);
  xt_pickler_put_tuple(&template->pickle);
}

void xt_pickle_tensor(xt_pickle_template *template, const xt_save_tensors *s, const xt_save_tensor *t) {
  xt_pickle_tensor_function(template, t);
  xt_pickle_tensor_args(template, s, t);
  xt_pickler_put_reduce(&template->pickle);
}

void xt_pickle_tensor_bytes(xt_pickle_template *template, const xt_save_tensors *s, const int64_t *sizes,
                            const int64_t *strides, int ndim) {
  xt_pickler *p = &template->pickle;
  size_t view = s->view_count - 1;
  xt_pickler_put_global(p, "torch._utils\n_rebuild_tensor_v3\n");
  xt_pickler_put_mark(p);
  put_storage(template, view, NULL);
  put_dims(p, sizes, ndim);
  put_dims(p, strides, ndim);
  xt_pickler_put_bool(p, false);
  put_hooks(p);
  put_dtype(p, s->views[view].dtype);
  xt_pickler_put_tuple(p);
  xt_pickler_put_reduce(p);
}
