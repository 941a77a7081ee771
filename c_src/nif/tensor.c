#include "nif/tensor.h"

#include <string.h>

#include "core/memory/memory.h"
#include "core/os/exit_guard.h"
#include "core/os/mapping.h"
#include "nif/table.h"
#include "nif/term.h"

/* Light handles are freed on the current thread: freeing them on the reaper thread would contend with this one for
 * malloc's lock. They are freed one level deep only, because a handle may own the last reference to another one, and
 * such a chain can be long. */
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

static void free_contents(xt_tensor_resource *resource) {
  if (resource->is_blob_owner) return; /* destroy_tensor drops its handle */
  void *owner = atomic_exchange(&resource->blob_owner, NULL);
  if (owner) enif_release_resource(owner);
  xt_tensor_drop(resource->handle);
}

static void release(xt_tensor_resource *resource) {
  if (atomic_fetch_or(&resource->state, 1) == 0) free_contents(resource);
}

static void destroy_tensor(ErlNifEnv *env, void *object) {
  xt_tensor_resource *resource = object;
  (void)env;
  release(resource);
  if (resource->is_blob_owner) xt_tensor_drop(resource->handle);
}

const ErlNifResourceTypeInit xt_tensor_callbacks = {.dtor = destroy_tensor, .dyncall = xt_export_tensor};

ERL_NIF_TERM xt_tensor_term(ErlNifEnv *env, ERL_NIF_TERM term) {
  ERL_NIF_TERM tensor, resource;
  if (enif_get_map_value(env, term, xt_am_resource, &resource)) return resource; /* %Tensor{} */
  bool is_view = enif_get_map_value(env, term, xt_am_tensor, &tensor) &&         /* %BlobView{} */
                 enif_get_map_value(env, tensor, xt_am_resource, &resource);
  return is_view ? resource : term;
}

bool xt_get_tensor(ErlNifEnv *env, ERL_NIF_TERM term, xt_tensor_resource **out) {
  return enif_get_resource(env, xt_tensor_term(env, term), xt_tensor_type, (void **)out);
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
  if (atomic_fetch_sub(&resource->state, 2) == 3) free_contents(resource);
}

xt_status xt_tensor_take(xt_tensor_resource *resource, xt_tensor **out, xt_error *error) {
  xt_status status = xt_tensor_enter(resource, error);
  if (status != XT_STATUS_ok) return status;
  *out = xt_tensor_keep(resource->handle);
  xt_tensor_leave(resource);
  return XT_STATUS_ok;
}

xt_status xt_tensor_pin(xt_tensor_resource *resource, xt_tensor **out, xt_error *error) {
  if (!resource->is_blob_owner) return xt_tensor_take(resource, out, error);
  *out = xt_tensor_keep(resource->handle);
  return XT_STATUS_ok;
}

xt_tensor_resource *xt_tensor_resource_new(xt_tensor *handle) {
  xt_tensor_resource *resource = enif_alloc_resource(xt_tensor_type, sizeof *resource);
  atomic_init(&resource->state, 0);
  atomic_init(&resource->blob_owner, NULL);
  resource->is_blob_owner = false;
  resource->handle = handle;
  return resource;
}

ERL_NIF_TERM xt_make_tensor_struct(ErlNifEnv *env, xt_tensor_resource *resource, ERL_NIF_TERM shape) {
  const xt_tensor_info *info = &resource->handle->info;
  /* in the order of a map, so that they do not have to be sorted */
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_device, xt_am_dtype, xt_am_resource, xt_am_shape};
  ERL_NIF_TERM values[] = {xt_am_module_tensor, xt_make_device(env, info->device), xt_make_dtype(info->dtype),
                           enif_make_resource(env, resource), shape};
  return xt_make_struct(env, keys, values, 5);
}

ERL_NIF_TERM xt_make_tensor(ErlNifEnv *env, xt_tensor *handle) {
  xt_tensor_resource *resource = xt_tensor_resource_new(handle);
  ERL_NIF_TERM shape = xt_make_dims(env, handle->info.sizes, handle->info.ndim);
  ERL_NIF_TERM tensor = xt_make_tensor_struct(env, resource, shape);
  enif_release_resource(resource);
  return tensor;
}

static bool is_like(const xt_tensor_info *a, const xt_tensor_info *b) {
  return a->dtype == b->dtype && a->device.type == b->device.type && a->device.index == b->device.index &&
         a->ndim == b->ndim && (!a->ndim || !memcmp(a->sizes, b->sizes, (size_t)a->ndim * sizeof *a->sizes));
}

ERL_NIF_TERM xt_make_tensor_like(ErlNifEnv *env, xt_tensor *handle, xt_tensor_like *like) {
  ERL_NIF_TERM tensor;
  if (like->term && is_like(like->info, &handle->info)) {
    xt_tensor_resource *resource = xt_tensor_resource_new(handle);
    enif_make_map_update(env, like->term, xt_am_resource, enif_make_resource(env, resource), &tensor);
    enif_release_resource(resource);
  } else {
    tensor = xt_make_tensor(env, handle);
  }
  *like = (xt_tensor_like){tensor, &handle->info};
  return tensor;
}

ERL_NIF_TERM xt_make_tensor_result(ErlNifEnv *env, xt_status status, xt_tensor *handle, const xt_error *error) {
  return status == XT_STATUS_ok ? xt_make_ok(env, xt_make_tensor(env, handle)) : xt_make_error(env, error);
}

xt_status xt_tensor_check_plain(const xt_tensor_info *info, xt_error *error) {
  if (info->plain) return XT_STATUS_ok;
  const char *why;
  if (info->device.type == XT_DEVICE_META) why = "a meta tensor has no memory";
  else if (!info->strides) why = "the tensor is sparse; share its values and indices, or use \"to_dense\"";
  else if (info->scheme) why = "the tensor is quantized; use \"int_repr\" or \"dequantize\"";
  else why = "the tensor is a conj or neg view; use \"resolve_conj\" or \"resolve_neg\"";
  return xt_error_set(error, XT_STATUS_unsupported, "cannot share the tensor's memory: %s", why);
}

xt_status xt_tensor_check_memory(const xt_tensor *tensor, xt_error *error) {
  if (!xt_mapping_poisoned(tensor->info.data, tensor->info.span)) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_file_changed,
                      "the mapped file of this tensor was truncated; open it again, or load it without mmap: true");
}

/* tensor_strides(tensor) :: {:ok, tuple | nil, 0} | {:error, e}     nil if the layout has no strides */
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
  return xt_make_result(env, status, xt_make_bool(equal), &error);
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

/* tensor_set_requires_grad(tensor, boolean) :: {:ok, tensor, 0} | {:error, e}     shares the memory */
ERL_NIF_TERM xt_nif_tensor_set_requires_grad(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  xt_tensor *handle = NULL;
  xt_error error;
  bool flag;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &resource) || !xt_get_bool(env, argv[1], &flag)) return enif_make_badarg(env);
  if (xt_tensor_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_status status = xt_torch->tensor_set_requires_grad(resource->handle, flag, &handle, &error);
  xt_tensor_leave(resource);
  return xt_make_tensor_result(env, status, handle, &error);
}

/* tensor_release(tensor) :: :ok     also if it was released before */
ERL_NIF_TERM xt_nif_tensor_release(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &resource)) return enif_make_badarg(env);
  release(resource);
  return xt_am_ok;
}
