/* Tensors as raw memory, and raw memory as tensors, without a copy. */
#include <string.h>

#include "core/os/address.h"
#include "nif/pin.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* A blob's owner: another handle of the tensor. It has no release/1, so the address in the blob is good while the
 * blob lives. */
typedef struct {
  xt_tensor *handle;
} owner_resource;

static void owner_destroyed(ErlNifEnv *env, void *object) {
  owner_resource *owner = object;
  (void)env;
  xt_tensor_drop(owner->handle);
}

const ErlNifResourceTypeInit xt_blob_owner_callbacks = {.dtor = owner_destroyed};

/* The owner of all blobs of one tensor: made once, since a resource of its own would double the cost of a blob. */
static owner_resource *owner_of(xt_tensor_resource *resource) {
  void *owner = atomic_load(&resource->owner);
  if (owner) return owner;
  owner_resource *made = enif_alloc_resource(xt_blob_owner_type, sizeof *made);
  made->handle = xt_tensor_keep(resource->handle);
  if (atomic_compare_exchange_strong(&resource->owner, &owner, made)) return made;
  enif_release_resource(made); /* another call was first */
  return owner;
}

static ERL_NIF_TERM make_blob(ErlNifEnv *env, xt_tensor_resource *resource) {
  const xt_tensor_info *info = &resource->handle->info;
  /* in the order maps keep them: sorting costs */
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_device, xt_am_dtype, xt_am_element_size,
                         xt_am_owner,      xt_am_ptr,    xt_am_shape, xt_am_strides};
  ERL_NIF_TERM values[] = {xt_am_module_blob,
                           xt_make_device(env, info->device),
                           xt_make_dtype(info->dtype),
                           enif_make_uint64(env, xt_dtype_get(info->dtype)->size),
                           enif_make_resource(env, owner_of(resource)),
                           enif_make_uint64(env, (uintptr_t)info->data),
                           xt_make_dims(env, info->sizes, info->ndim),
                           xt_make_dims(env, info->strides, info->ndim)};
  return xt_make_struct(env, keys, values, 8);
}

/* blob_to_blob(tensor) :: {:ok, %Blob{}, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_blob_to_blob(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  xt_error error;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &resource)) return enif_make_badarg(env);
  if (xt_tensor_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_status status = xt_tensor_check_plain(&resource->handle->info, &error);
  ERL_NIF_TERM result = status == XT_STATUS_ok ? xt_make_ok(env, make_blob(env, resource)) : xt_make_error(env, &error);
  xt_tensor_leave(resource);
  return result;
}

/* Everything LibTorch would only assert: rank, signs, overflow; and for CPU memory, that it is there. */
static xt_status check_foreign(const xt_foreign *memory, int64_t *strides, int stride_count, bool probe,
                               xt_error *error) {
  const xt_dtype_info *dtype = xt_dtype_get(memory->dtype);
  int64_t last = 0, step, elements = 1;
  size_t bytes;
  bool empty = false;
  if (dtype->kind == XT_KIND_QUANT)
    return xt_error_set(error, XT_STATUS_unsupported, "%s needs a scale: hand over the integers", dtype->name);
  if (stride_count != memory->ndim)
    return xt_error_set(error, XT_STATUS_bad_argument, "strides has %d elements for a shape of %d", stride_count,
                        memory->ndim);
  for (int d = 0; d < memory->ndim; d++) {
    if (memory->sizes[d] < 0 || strides[d] < 0)
      return xt_error_set(error, XT_STATUS_bad_argument, "dimension %d has a negative %s", d,
                          memory->sizes[d] < 0 ? "size" : "stride");
    if (memory->sizes[d] == 0) empty = true;
  }
  for (int d = 0; d < memory->ndim && !empty; d++)
    if (__builtin_mul_overflow(memory->sizes[d] - 1, strides[d], &step) || __builtin_add_overflow(last, step, &last) ||
        __builtin_mul_overflow(elements, memory->sizes[d], &elements))
      return xt_error_set(error, XT_STATUS_bad_argument, "shape and strides overflow 64 bits");
  if (empty) return XT_STATUS_ok;
  uintptr_t end;
  if (__builtin_mul_overflow((size_t)last + 1, dtype->size, &bytes) || bytes > INT64_MAX ||
      __builtin_add_overflow((uintptr_t)memory->data, bytes, &end))
    return xt_error_set(error, XT_STATUS_bad_argument, "shape and strides reach past the address space");
  if (!memory->data) return xt_error_set(error, XT_STATUS_bad_argument, "ptr is null");
  size_t alignment = dtype->kind == XT_KIND_COMPLEX ? dtype->size / 2 : dtype->size;
  if (memory->device.type == XT_DEVICE_CPU && (uintptr_t)memory->data % alignment)
    return xt_error_set(error, XT_STATUS_bad_argument, "ptr is not aligned for %s", dtype->name);
  if (probe && memory->device.type == XT_DEVICE_CPU && !xt_address_readable(memory->data, bytes))
    return xt_error_set(error, XT_STATUS_bad_argument, "the %zu bytes at %p are not memory of this process", bytes,
                        memory->data);
  return XT_STATUS_ok;
}

static bool get_key(ErlNifEnv *env, ERL_NIF_TERM map, ERL_NIF_TERM key, ERL_NIF_TERM *out) {
  return enif_get_map_value(env, map, key, out) && *out != xt_am_nil;
}

static xt_status missing(xt_error *error, const char *what) {
  return xt_error_set(error, XT_STATUS_bad_argument, "%s", what);
}

static xt_status get_foreign(ErlNifEnv *env, ERL_NIF_TERM info, xt_foreign *memory, int64_t *sizes, int64_t *strides,
                             int *stride_count, xt_error *error) {
  ERL_NIF_TERM term;
  ErlNifUInt64 address;
  if (!get_key(env, info, xt_am_ptr, &term) || !enif_get_uint64(env, term, &address))
    return missing(error, "ptr must be an address, an integer of 0 or more");
  if (!get_key(env, info, xt_am_shape, &term) || !xt_get_dims(env, term, sizes, &memory->ndim))
    return missing(error, "shape must be a tuple or list of at most 64 integers");
  if (!get_key(env, info, xt_am_dtype, &term) || !xt_get_dtype(env, term, &memory->dtype))
    return missing(error, "dtype must be one of ExTorch.DType.names/0, a short name or an Nx type");
  memory->device = (xt_device){XT_DEVICE_CPU, -1};
  if (get_key(env, info, xt_am_device, &term) && !xt_get_device(env, term, &memory->device))
    return missing(error, "device must be :cpu, :cuda or {:cuda, n}");
  if (memory->device.type != XT_DEVICE_CPU && memory->device.type != XT_DEVICE_CUDA)
    return xt_error_set(error, XT_STATUS_unsupported, "a blob is memory of :cpu or {:cuda, n}");
  memory->data = (void *)(uintptr_t)address;
  *stride_count = memory->ndim;
  if (get_key(env, info, xt_am_strides, &term)) {
    if (!xt_get_dims(env, term, strides, stride_count))
      return missing(error, "strides must be a tuple or list of integers");
    return XT_STATUS_ok;
  }
  int64_t step = 1;
  for (int d = memory->ndim - 1; d >= 0; d--) {
    strides[d] = step;
    if (sizes[d] > 0 && __builtin_mul_overflow(step, sizes[d], &step))
      return missing(error, "the shape overflows 64 bits");
  }
  return XT_STATUS_ok;
}

static void drop_owner(void *tensor) { xt_tensor_drop(tensor); }

/* Memory inside a binary that is named as the owner is that binary's, and immutable. */
static void freeze_binary(ErlNifEnv *env, xt_pin *pin, ERL_NIF_TERM owner, const void *data) {
  ErlNifBinary binary;
  if (!enif_inspect_binary(env, owner, &binary)) return;
  uintptr_t start = (uintptr_t)binary.data, at = (uintptr_t)data;
  if (at >= start && at - start < binary.size) xt_frozen_add(&pin->frozen, binary.data, binary.size);
}

/* Who keeps the memory. A blob that nobody else was named for has a handle as its owner, which is kept as it is; in
 * every other case a pin holds the owner that was given and the one inside the blob. */
static xt_status own(ErlNifEnv *env, ERL_NIF_TERM info, ERL_NIF_TERM given, xt_foreign *memory, xt_error *error) {
  owner_resource *ours = NULL;
  ERL_NIF_TERM inside, copy;
  bool has_inside = get_key(env, info, xt_am_owner, &inside);
  if (has_inside) enif_get_resource(env, inside, xt_blob_owner_type, (void **)&ours);
  if (ours && given == xt_am_nil) {
    memory->owner = xt_tensor_keep(ours->handle);
    memory->release = drop_owner;
    memory->light = true;
    return XT_STATUS_ok;
  }
  xt_pin *pin = xt_pin_new();
  bool copied =
      pin && (given == xt_am_nil || xt_pin_term(pin, given, &copy)) && (!has_inside || xt_pin_term(pin, inside, &copy));
  xt_status status = copied ? xt_pin_tensors(env, pin, given, error)
                            : xt_error_set(error, XT_STATUS_no_memory, "no memory to pin the owner");
  if (status == XT_STATUS_ok && has_inside) status = xt_pin_tensors(env, pin, inside, error);
  if (status == XT_STATUS_ok && given != xt_am_nil) freeze_binary(env, pin, given, memory->data);
  if (status != XT_STATUS_ok && pin) xt_pin_release(pin);
  memory->owner = pin;
  memory->release = xt_pin_release;
  return status;
}

/* blob_from_blob(info, owner | nil, validate?) :: {:ok, tensor, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_blob_from_blob(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  int64_t sizes[XT_MAX_DIMS], strides[XT_MAX_DIMS];
  xt_foreign memory = {.sizes = sizes, .strides = strides};
  xt_tensor *tensor = NULL;
  xt_error error;
  bool validate;
  int stride_count;
  (void)argc;
  if (!enif_is_map(env, argv[0]) || !xt_get_bool(env, argv[2], &validate)) return enif_make_badarg(env);
  xt_status status = get_foreign(env, argv[0], &memory, sizes, strides, &stride_count, &error);
  if (status == XT_STATUS_ok) status = check_foreign(&memory, strides, stride_count, validate, &error);
  if (status == XT_STATUS_ok) status = own(env, argv[0], argv[1], &memory, &error);
  if (status == XT_STATUS_ok) status = xt_torch->tensor_foreign(&memory, &tensor, &error);
  return xt_make_tensor_result(env, status, tensor, &error);
}
