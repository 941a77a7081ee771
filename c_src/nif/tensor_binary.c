/* Erlang binaries and tensors over the same memory. Memory that a binary sees is frozen while the binary lives. */
#include <string.h>

#include "core/memory/memory.h"
#include "nif/pin.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* Copies up to this size take microseconds. */
enum { BRIEF_BYTES = 64 * 1024 };

/* What a resource binary keeps: a handle of its tensor, so that release/1 does not take the memory away. */
typedef struct {
  xt_tensor *handle;
  xt_frozen frozen;
} view_resource;

static void view_destroyed(ErlNifEnv *env, void *object) {
  view_resource *view = object;
  (void)env;
  xt_frozen_remove(&view->frozen);
  xt_tensor_drop(view->handle);
}

const ErlNifResourceTypeInit xt_tensor_binary_callbacks = {.dtor = view_destroyed};

/* Bytes of a contiguous tensor of this shape; false when the shape is negative or overflows. */
static bool shape_bytes(const int64_t *sizes, int ndim, size_t item, int64_t *strides, size_t *bytes) {
  int64_t elements = 1;
  bool empty = false;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = elements;
    if (sizes[d] < 0 || (sizes[d] > 0 && __builtin_mul_overflow(elements, sizes[d], &elements))) return false;
    if (sizes[d] == 0) empty = true;
  }
  return !__builtin_mul_overflow(empty ? 0 : (size_t)elements, item, bytes) && *bytes <= INT64_MAX;
}

static size_t alignment_of(xt_dtype dtype) {
  const xt_dtype_info *info = xt_dtype_get(dtype);
  return info->kind == XT_KIND_COMPLEX ? info->size / 2 : info->size;
}

/* tensor_from_binary(binary, shape, dtype) :: {:ok, tensor, bytes} | {:error, e}
 *
 * binary --copy of the term--> pin --owner--> storage of the tensor; the last view of it frees the pin. */
ERL_NIF_TERM xt_nif_tensor_from_binary(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifBinary binary;
  xt_error error;
  xt_foreign memory = {.device = {XT_DEVICE_CPU, -1}, .release = xt_pin_release};
  int64_t sizes[XT_MAX_DIMS], strides[XT_MAX_DIMS];
  xt_tensor *tensor = NULL;
  ERL_NIF_TERM copy;
  size_t bytes;
  if (!enif_inspect_binary(env, argv[0], &binary) || !xt_get_dims(env, argv[1], sizes, &memory.ndim) ||
      !xt_get_dtype(env, argv[2], &memory.dtype))
    return enif_make_badarg(env);
  const xt_dtype_info *dtype = xt_dtype_get(memory.dtype);
  if (dtype->kind == XT_KIND_QUANT) {
    xt_error_set(&error, XT_STATUS_unsupported, "%s needs a scale: make the integers and quantize them", dtype->name);
    return xt_make_error(env, &error);
  }
  if (!shape_bytes(sizes, memory.ndim, dtype->size, strides, &bytes)) {
    xt_error_set(&error, XT_STATUS_bad_argument, "the shape has a negative size or is too large");
    return xt_make_error(env, &error);
  }
  if (bytes != binary.size) {
    xt_error_set(&error, XT_STATUS_bad_argument, "the binary has %zu bytes, and this shape of %s needs %zu",
                 binary.size, dtype->name, bytes);
    return xt_make_error(env, &error);
  }
  xt_pin *pin = xt_pin_new();
  if (!pin || !xt_pin_term(pin, argv[0], &copy)) {
    if (pin) xt_pin_release(pin);
    xt_error_set(&error, XT_STATUS_no_memory, "no memory to pin the binary");
    return xt_make_error(env, &error);
  }
  enif_inspect_binary(pin->env, copy, &binary);
  memory.data = binary.data;
  if ((uintptr_t)binary.data % alignment_of(memory.dtype)) {
    /* The processor reads whole elements: a binary that starts between two is copied, once. */
    if (bytes > BRIEF_BYTES && enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER) {
      xt_pin_release(pin);
      return enif_schedule_nif(env, "tensor_from_binary", XT_DIRTY_CPU, xt_nif_tensor_from_binary, argc, argv);
    }
    memory.data = pin->block = xt_memory_alloc(bytes);
    if (!pin->block) {
      xt_memory_refused();
      xt_pin_release(pin);
      xt_error_set(&error, XT_STATUS_limit, "no room for the aligned copy of the binary");
      error.collect = true;
      return xt_make_error(env, &error);
    }
    memcpy(pin->block, binary.data, bytes);
    enif_clear_env(pin->env);
  }
  xt_frozen_add(&pin->frozen, memory.data, bytes);
  memory.sizes = sizes;
  memory.strides = strides;
  memory.owner = pin;
  xt_status status = xt_torch->tensor_foreign(&memory, &tensor, &error);
  return xt_return_tensor(env, status, tensor, &error);
}

/* The handle is taken over. */
static ERL_NIF_TERM make_view(ErlNifEnv *env, xt_tensor *handle) {
  const xt_tensor_info *info = &handle->info;
  if (!info->span) {
    xt_tensor_drop(handle);
    return xt_make_text(env, "", 0);
  }
  view_resource *view = enif_alloc_resource(xt_tensor_binary_type, sizeof *view);
  view->handle = handle;
  xt_frozen_add(&view->frozen, info->data, info->span);
  ERL_NIF_TERM binary = enif_make_resource_binary(env, view, info->data, info->span);
  enif_release_resource(view);
  return binary;
}

/* tensor_to_binary(tensor) :: {:ok, binary, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_tensor_to_binary(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  xt_tensor *handle = NULL, *copy = NULL;
  xt_error error;
  if (!xt_get_tensor(env, argv[0], &resource)) return enif_make_badarg(env);
  if (xt_tensor_take(resource, &handle, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  const xt_tensor_info *info = &handle->info;
  if (info->plain && info->contiguous && info->device.type == XT_DEVICE_CPU)
    return xt_make_ok(env, make_view(env, handle));

  xt_status status;
  if (!info->strides || xt_dtype_get(info->dtype)->kind == XT_KIND_QUANT)
    status = xt_error_set(&error, XT_STATUS_unsupported,
                          "a sparse or quantized tensor is more than its bytes; use \"to_dense\", \"int_repr\" or "
                          "\"dequantize\" first");
  else if (enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER) {
    xt_tensor_drop(handle);
    return enif_schedule_nif(env, "tensor_to_binary", XT_DIRTY_CPU, xt_nif_tensor_to_binary, argc, argv);
  } else status = xt_torch->tensor_plain(handle, &copy, &error);
  xt_tensor_drop(handle);
  return status == XT_STATUS_ok ? xt_make_ok(env, make_view(env, copy)) : xt_make_error(env, &error);
}
