/* Blobs: the memory of a tensor as an address, and a tensor over memory that something else owns. Nothing is copied. */
#include "core/checkpoint/record_reader.h"
#include "core/os/address.h"
#include "nif/pin.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* ---- Tensor to blob ---- */

static xt_tensor_resource *new_owner(xt_tensor *handle) {
  xt_tensor_resource *owner = xt_tensor_resource_new(xt_tensor_keep(handle));
  owner->is_blob_owner = true;
  return owner;
}

/* Makes the %Tensor{} that owns the blobs of a tensor. All blobs of a tensor share one owner, because creating a
 * resource costs as much as the rest of the call. */
static ERL_NIF_TERM make_owner(ErlNifEnv *env, xt_tensor_resource *resource, ERL_NIF_TERM shape) {
  if (resource->is_blob_owner) return xt_make_tensor_struct(env, resource, shape);
  void *cached = atomic_load(&resource->blob_owner);
  if (cached && !xt_tensor_is_released(cached)) return xt_make_tensor_struct(env, cached, shape);
  xt_tensor_resource *owner = new_owner(resource->handle);
  ERL_NIF_TERM term = xt_make_tensor_struct(env, owner, shape);
  /* The cache keeps the reference. If another call was faster, or the cached owner was released, it is not cached. */
  if (cached || !atomic_compare_exchange_strong(&resource->blob_owner, &cached, owner)) enif_release_resource(owner);
  return term;
}

static ERL_NIF_TERM make_blob(ErlNifEnv *env, xt_tensor_resource *resource) {
  const xt_tensor_info *info = &resource->handle->info;
  ERL_NIF_TERM shape = xt_make_dims(env, info->sizes, info->ndim);
  /* in the order of a map, so that they do not have to be sorted */
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_device, xt_am_dtype, xt_am_element_size,
                         xt_am_owner,      xt_am_ptr,    xt_am_shape, xt_am_strides};
  ERL_NIF_TERM values[] = {xt_am_module_blob,
                           xt_make_device(env, info->device),
                           xt_make_dtype(info->dtype),
                           enif_make_uint64(env, xt_dtype_get(info->dtype)->size),
                           make_owner(env, resource, shape),
                           enif_make_uint64(env, (uintptr_t)info->data),
                           shape,
                           xt_make_dim_list(env, info->strides, info->ndim)};
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
  ERL_NIF_TERM blob = status == XT_STATUS_ok ? make_blob(env, resource) : xt_am_nil;
  xt_tensor_leave(resource);
  return xt_make_result(env, status, blob, &error);
}

/* ---- Blob to tensor: decoding ---- */

static bool get_field(ErlNifEnv *env, ERL_NIF_TERM map, ERL_NIF_TERM key, ERL_NIF_TERM *out) {
  return enif_get_map_value(env, map, key, out) && *out != xt_am_nil;
}

static xt_status invalid(xt_error *error, const char *message) {
  return xt_error_set(error, XT_STATUS_bad_argument, "%s", message);
}

static xt_status contiguous_strides(const int64_t *sizes, int ndim, int64_t *strides, xt_error *error) {
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = step;
    if (sizes[d] > 0 && __builtin_mul_overflow(step, sizes[d], &step))
      return invalid(error, "the shape is too large: its size overflows 64 bits");
  }
  return XT_STATUS_ok;
}

/* Decodes the map or struct. memory->sizes and memory->strides point to `sizes` and `strides`. */
static xt_status get_foreign(ErlNifEnv *env, ERL_NIF_TERM info, xt_foreign *memory, int64_t *sizes, int64_t *strides,
                             xt_error *error) {
  ERL_NIF_TERM term;
  ErlNifUInt64 address;
  int stride_count;
  if (!get_field(env, info, xt_am_ptr, &term) || !enif_get_uint64(env, term, &address))
    return invalid(error, "ptr must be an address, a non-negative integer");
  if (!get_field(env, info, xt_am_shape, &term) || !xt_get_dims(env, term, sizes, &memory->ndim))
    return invalid(error, "shape must be a tuple or list of at most 64 integers");
  if (!get_field(env, info, xt_am_dtype, &term) || !xt_get_dtype(env, term, &memory->dtype))
    return invalid(error, "dtype must be one of ExTorch.DType.names/0, a short name or an Nx type");
  memory->device = (xt_device){XT_DEVICE_CPU, -1};
  if (get_field(env, info, xt_am_device, &term) && !xt_get_device(env, term, &memory->device))
    return invalid(error, "device must be :cpu, {:cuda, n} or another device (ExTorch.Device)");
  if (memory->device.type == XT_DEVICE_META || memory->device.type == XT_DEVICE_MPS ||
      memory->device.type == XT_DEVICE_XLA)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "memory of the device %s has no addresses; copy the tensor to the CPU",
                        xt_device_type_name(memory->device.type));
  if (memory->device.type != XT_DEVICE_CPU && memory->device.index < 0) memory->device.index = 0;
  memory->data = (void *)(uintptr_t)address;
  if (!get_field(env, info, xt_am_strides, &term)) return contiguous_strides(sizes, memory->ndim, strides, error);
  if (!xt_get_dims(env, term, strides, &stride_count))
    return invalid(error, "strides must be a tuple or list of integers");
  if (stride_count != memory->ndim)
    return xt_error_set(error, XT_STATUS_bad_argument, "shape has %d dimensions, but strides has %d", memory->ndim,
                        stride_count);
  return XT_STATUS_ok;
}

/* ---- Blob to tensor: checks ---- */

/* Computes the bytes from the first element to the end of the last one; 0 if there are no elements. */
static xt_status check_span(const xt_foreign *memory, size_t *bytes, xt_error *error) {
  int64_t last = 0, step, elements = 1;
  bool empty = false;
  for (int d = 0; d < memory->ndim; d++) {
    if (memory->sizes[d] < 0 || memory->strides[d] < 0)
      return xt_error_set(error, XT_STATUS_bad_argument, "dimension %d has a negative %s", d,
                          memory->sizes[d] < 0 ? "size" : "stride");
    if (memory->sizes[d] == 0) empty = true;
  }
  *bytes = 0;
  if (empty) return XT_STATUS_ok;
  for (int d = 0; d < memory->ndim; d++)
    if (__builtin_mul_overflow(memory->sizes[d] - 1, memory->strides[d], &step) ||
        __builtin_add_overflow(last, step, &last) || __builtin_mul_overflow(elements, memory->sizes[d], &elements))
      return invalid(error, "shape and strides overflow 64 bits");
  if (__builtin_mul_overflow((size_t)last + 1, xt_dtype_get(memory->dtype)->size, bytes) || *bytes > INT64_MAX)
    return invalid(error, "shape and strides extend past the end of the address space");
  return XT_STATUS_ok;
}

/* Checks what LibTorch would only assert. */
static xt_status check_foreign(const xt_foreign *memory, size_t *span, xt_error *error) {
  const xt_dtype_info *dtype = xt_dtype_get(memory->dtype);
  uintptr_t end;
  if (dtype->kind == XT_KIND_QUANT)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "%s is quantized and needs a scale; pass the memory with an integer dtype", dtype->name);
  xt_status status = check_span(memory, span, error);
  if (status != XT_STATUS_ok || !*span) return status;
  if (__builtin_add_overflow((uintptr_t)memory->data, *span, &end))
    return invalid(error, "shape and strides extend past the end of the address space");
  if (!memory->data) return invalid(error, "ptr is null");
  if (memory->device.type == XT_DEVICE_CPU && !xt_dtype_aligned(memory->data, memory->dtype))
    return xt_error_set(error, XT_STATUS_bad_argument, "ptr is not aligned for %s", dtype->name);
  return XT_STATUS_ok;
}

/* Sets *own to whether the memory is a part of the memory of the tensor that owns the blob. Fails if that is on another
 * device: its address means something else there, or nothing. */
static xt_status check_own(ErlNifEnv *env, ERL_NIF_TERM info, const xt_foreign *memory, size_t size, bool *own,
                           xt_error *error) {
  xt_tensor_resource *resource;
  ERL_NIF_TERM owner;
  *own = false;
  if (!get_field(env, info, xt_am_owner, &owner) || !xt_get_tensor(env, owner, &resource) || !resource->is_blob_owner)
    return XT_STATUS_ok;
  const xt_tensor_info *tensor = &resource->handle->info;
  uintptr_t start = (uintptr_t)tensor->storage, from = (uintptr_t)memory->data;
  *own = from >= start && from + size <= start + tensor->storage_bytes;
  bool same = tensor->device.type == memory->device.type && tensor->device.index == memory->device.index;
  bool available = xt_torch->device_count(memory->device.type) > memory->device.index; /* else LibTorch refuses it */
  if (!*own || same || !available) return XT_STATUS_ok;
  char place[XT_DEVICE_NAME + 16];
  xt_device_location(tensor->device, place, sizeof place);
  return xt_error_set(error, XT_STATUS_bad_argument, "the memory of the blob is on the device %s", place);
}

/* Asks the kernel what is possible with the memory. */
static xt_status check_access(const xt_foreign *memory, size_t size, bool *read_only, xt_error *error) {
  xt_access access = xt_address_access(memory->data, size);
  *read_only = access == XT_ACCESS_READ;
  if (access != XT_ACCESS_NONE) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_bad_argument, "the %zu bytes at %p are not readable memory of this process",
                      size, memory->data);
}

/* ---- Blob to tensor: ownership ---- */

static void drop_owner(void *tensor) { xt_tensor_drop(tensor); }

/* Sets the owner of the memory. If only the blob has an owner, its handle is enough. In all other cases a pin holds the
 * owner of the blob, if any, and the owner that was given as an option, if any. Memory that cannot be written is frozen
 * by the pin. */
static xt_status set_owner(ErlNifEnv *env, ERL_NIF_TERM info, ERL_NIF_TERM given, xt_foreign *memory, size_t size,
                           bool read_only, xt_error *error) {
  xt_tensor_resource *resource;
  ERL_NIF_TERM owner;
  xt_status status = XT_STATUS_ok;
  bool has_owner = get_field(env, info, xt_am_owner, &owner);
  if (has_owner && given == xt_am_nil && !read_only && xt_get_tensor(env, owner, &resource) &&
      resource->is_blob_owner) {
    memory->owner = xt_tensor_keep(resource->handle);
    memory->release = drop_owner;
    memory->light = true;
    return XT_STATUS_ok;
  }
  xt_pin *pin = xt_pin_new();
  if (!pin) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while pinning the owner");
  if (given != xt_am_nil) status = xt_pin_owner(env, pin, given, memory->data, size, error);
  if (status == XT_STATUS_ok && has_owner) status = xt_pin_owner(env, pin, owner, memory->data, size, error);
  if (status != XT_STATUS_ok) {
    xt_pin_release(pin);
    return status;
  }
  if (read_only && pin->frozen.start == pin->frozen.end) xt_frozen_add(&pin->frozen, memory->data, size);
  memory->owner = pin;
  memory->release = xt_pin_release;
  return XT_STATUS_ok;
}

/* blob_from_blob(info, owner | nil, validate?, frozen?) :: {:ok, tensor, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_blob_from_blob(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  int64_t sizes[XT_MAX_DIMS], strides[XT_MAX_DIMS];
  xt_foreign memory = {.sizes = sizes, .strides = strides};
  xt_tensor *tensor = NULL;
  xt_error error;
  size_t size = 0;
  bool validate, frozen, own = false, read_only = false;
  if (!enif_is_map(env, argv[0]) || !xt_get_bool(env, argv[2], &validate) || !xt_get_bool(env, argv[3], &frozen))
    return enif_make_badarg(env);
  xt_status status = get_foreign(env, argv[0], &memory, sizes, strides, &error);
  if (status == XT_STATUS_ok) status = check_foreign(&memory, &size, &error);
  if (status == XT_STATUS_ok) status = check_own(env, argv[0], &memory, size, &own, &error);
  if (status == XT_STATUS_ok && validate && size && memory.device.type == XT_DEVICE_CPU && !own) {
    if (enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER)
      return enif_schedule_nif(env, "blob_from_blob", XT_DIRTY_IO, xt_nif_blob_from_blob, argc, argv);
    status = check_access(&memory, size, &read_only, &error);
  }
  if (status == XT_STATUS_ok) status = set_owner(env, argv[0], argv[1], &memory, size, read_only || frozen, &error);
  if (status == XT_STATUS_ok) status = xt_torch->tensor_foreign(&memory, &tensor, &error);
  return xt_make_tensor_result(env, status, tensor, &error);
}
