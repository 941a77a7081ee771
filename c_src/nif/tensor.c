#include "nif/tensor.h"

#include "core/memory/memory.h"
#include "core/os/exit_guard.h"
#include "core/os/mapping.h"
#include "nif/export.h"
#include "nif/table.h"
#include "nif/term.h"

/* Light ones are freed where they are dropped: sent to another thread, their small pieces would come back to this one
 * through malloc's lock. Only one at a time, since what it owned may be the last handle of the next in a long chain. */
void xt_tensor_drop(xt_tensor *tensor) {
  static _Thread_local bool freeing;
  if (__atomic_sub_fetch(&tensor->references, 1, __ATOMIC_ACQ_REL) > 0) return;
  if (!tensor->light || freeing || !xt_exit_guard_enter()) {
    xt_reaper_push(&tensor->reapable);
    return;
  }
  freeing = true;
  tensor->reapable.run(&tensor->reapable);
  freeing = false;
  xt_exit_guard_leave();
}

static void finish(xt_tensor_resource *resource) {
  void *owner = atomic_exchange(&resource->owner, NULL);
  if (owner) enif_release_resource(owner);
  xt_tensor_drop(resource->handle);
}

static void release(xt_tensor_resource *resource) {
  if (atomic_fetch_or(&resource->state, 1) == 0) finish(resource);
}

static void tensor_destroyed(ErlNifEnv *env, void *object) {
  (void)env;
  release(object);
}

const ErlNifResourceTypeInit xt_tensor_callbacks = {.dtor = tensor_destroyed, .dyncall = xt_export_tensor};

bool xt_get_tensor(ErlNifEnv *env, ERL_NIF_TERM term, xt_tensor_resource **out) {
  ERL_NIF_TERM inner;
  if (enif_get_resource(env, term, xt_tensor_type, (void **)out)) return true;
  if (enif_get_map_value(env, term, xt_am_tensor, &inner)) term = inner; /* a %BlobView{} */
  return enif_get_map_value(env, term, xt_am_resource, &inner) &&
         enif_get_resource(env, inner, xt_tensor_type, (void **)out);
}

xt_status xt_tensor_enter(xt_tensor_resource *resource, xt_error *error) {
  uint_least64_t state = atomic_load(&resource->state);
  do {
    if (state & 1)
      return xt_error_set(error, XT_STATUS_released,
                          "this tensor was released; use it before ExTorch.Tensor.release/1 or keep a clone");
  } while (!atomic_compare_exchange_weak(&resource->state, &state, state + 2));
  return XT_STATUS_ok;
}

void xt_tensor_leave(xt_tensor_resource *resource) {
  if (atomic_fetch_sub(&resource->state, 2) == 3) finish(resource);
}

xt_status xt_tensor_take(xt_tensor_resource *resource, xt_tensor **out, xt_error *error) {
  xt_status status = xt_tensor_enter(resource, error);
  if (status != XT_STATUS_ok) return status;
  *out = xt_tensor_keep(resource->handle);
  xt_tensor_leave(resource);
  return XT_STATUS_ok;
}

ERL_NIF_TERM xt_make_tensor(ErlNifEnv *env, xt_tensor *handle) {
  const xt_tensor_info *info = &handle->info;
  xt_tensor_resource *resource = enif_alloc_resource(xt_tensor_type, sizeof *resource);
  atomic_init(&resource->state, 0);
  atomic_init(&resource->owner, NULL);
  resource->handle = handle;
  /* in the order maps keep them: sorting costs */
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_device, xt_am_dtype, xt_am_resource, xt_am_shape};
  ERL_NIF_TERM values[] = {xt_am_module_tensor, xt_make_device(env, info->device), xt_make_dtype(info->dtype),
                           enif_make_resource(env, resource), xt_make_dims(env, info->sizes, info->ndim)};
  enif_release_resource(resource);
  return xt_make_struct(env, keys, values, 5);
}

ERL_NIF_TERM xt_return_tensor(ErlNifEnv *env, xt_status status, xt_tensor *handle, xt_error *error) {
  return status == XT_STATUS_ok ? xt_make_ok(env, xt_make_tensor(env, handle)) : xt_make_error(env, error);
}

xt_status xt_tensor_check_plain(const xt_tensor_info *info, xt_error *error) {
  if (info->plain) return XT_STATUS_ok;
  const char *why = "is not plain memory";
  if (info->device.type == XT_DEVICE_META) why = "has no memory: it is a meta tensor";
  else if (!info->strides) why = "is sparse: hand over its values and indices, or use \"to_dense\"";
  else if (xt_dtype_get(info->dtype)->kind == XT_KIND_QUANT) why = "is quantized: use \"int_repr\" or \"dequantize\"";
  else why = "is a conj or neg view, whose bytes are not its values: use \"resolve_conj\" or \"resolve_neg\"";
  return xt_error_set(error, XT_STATUS_unsupported, "this tensor's memory cannot be handed out: it %s", why);
}

xt_status xt_tensor_check_memory(const xt_tensor *tensor, xt_error *error) {
  if (!xt_mapping_poisoned(tensor->info.data, tensor->info.span)) return XT_STATUS_ok;
  return xt_error_set(
      error, XT_STATUS_file_changed,
      "the mapped file that this tensor sees was truncated; open it again, or load it without mmap: true");
}

/* tensor_strides(tensor) :: {:ok, tuple | nil, 0} | {:error, e}     nil: the layout has no strides */
ERL_NIF_TERM xt_nif_tensor_strides(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  xt_error error;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &resource)) return enif_make_badarg(env);
  if (xt_tensor_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  const xt_tensor_info *info = &resource->handle->info;
  ERL_NIF_TERM strides = info->strides ? xt_make_dims(env, info->strides, info->ndim) : xt_am_nil;
  xt_tensor_leave(resource);
  return xt_make_ok(env, strides);
}

/* tensor_equal(tensor, tensor) :: {:ok, boolean, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_tensor_equal(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *a, *b;
  xt_error error;
  bool equal = false;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &a) || !xt_get_tensor(env, argv[1], &b)) return enif_make_badarg(env);
  if (xt_tensor_enter(a, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_status status = xt_tensor_enter(b, &error);
  if (status == XT_STATUS_ok) {
    status = xt_torch->tensor_equal(a->handle, b->handle, &equal, &error);
    if (status == XT_STATUS_ok) status = xt_tensor_check_memory(a->handle, &error);
    if (status == XT_STATUS_ok) status = xt_tensor_check_memory(b->handle, &error);
    xt_tensor_leave(b);
  }
  xt_tensor_leave(a);
  return status == XT_STATUS_ok ? xt_make_ok(env, xt_make_bool(equal)) : xt_make_error(env, &error);
}

/* tensor_requires_grad(tensor) :: {:ok, boolean, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_tensor_requires_grad(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  xt_error error;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &resource)) return enif_make_badarg(env);
  if (xt_tensor_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  bool requires_grad = resource->handle->requires_grad;
  xt_tensor_leave(resource);
  return xt_make_ok(env, xt_make_bool(requires_grad));
}

/* tensor_set_requires_grad(tensor, boolean) :: {:ok, tensor, 0} | {:error, e}     the same memory, another handle */
ERL_NIF_TERM xt_nif_tensor_set_requires_grad(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  xt_tensor *marked = NULL;
  xt_error error;
  bool flag;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &resource) || !xt_get_bool(env, argv[1], &flag)) return enif_make_badarg(env);
  if (xt_tensor_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_status status = xt_torch->tensor_set_requires_grad(resource->handle, flag, &marked, &error);
  xt_tensor_leave(resource);
  return xt_return_tensor(env, status, marked, &error);
}

/* tensor_release(tensor) :: :ok     again: still :ok */
ERL_NIF_TERM xt_nif_tensor_release(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &resource)) return enif_make_badarg(env);
  release(resource);
  return xt_am_ok;
}
