/* Tensors over the memory of Erlang binaries, and binaries over the memory of tensors. Memory that a binary shares is
 * frozen while the binary lives. */
#include <string.h>

#include "core/checkpoint/record_reader.h"
#include "core/memory/memory.h"
#include "nif/frozen_binary.h"
#include "nif/pin.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* Copying up to this size takes microseconds. */
enum { BRIEF_BYTES = 64 * 1024 };

static bool on_normal_scheduler(void) { return enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER; }

/* ---- Binary to tensor ----
 *
 *   binary ── copy of the term ──▶ pin ── owner ──▶ storage of the tensor
 *
 * The pin is released when the last view of the storage is freed. */

/* Computes the strides and the bytes of a contiguous tensor. Returns false if a size is negative or the shape is too
 * large. */
static bool layout_contiguous(const int64_t *sizes, int ndim, size_t item, int64_t *strides, size_t *bytes) {
  int64_t elements = 1;
  bool empty = false;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = elements;
    if (sizes[d] < 0 || (sizes[d] > 0 && __builtin_mul_overflow(elements, sizes[d], &elements))) return false;
    if (sizes[d] == 0) empty = true;
  }
  return !__builtin_mul_overflow(empty ? 0 : (size_t)elements, item, bytes) && *bytes <= INT64_MAX;
}

static xt_status check_size(xt_dtype dtype, const int64_t *sizes, int ndim, int64_t *strides, size_t size,
                            xt_error *error) {
  const xt_dtype_info *info = xt_dtype_get(dtype);
  size_t bytes;
  if (info->kind == XT_KIND_QUANT)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "%s is quantized and needs a scale; create a tensor of the integers and quantize it",
                        info->name);
  if (!layout_contiguous(sizes, ndim, info->size, strides, &bytes))
    return xt_error_set(error, XT_STATUS_bad_argument, "the shape has a negative size or is too large");
  if (bytes != size)
    return xt_error_set(error, XT_STATUS_bad_argument, "the binary has %zu bytes, but this shape of %s needs %zu", size,
                        info->name, bytes);
  return XT_STATUS_ok;
}

/* Replaces the pinned binary by a copy. LibTorch reads whole elements, so their addresses must be aligned. */
static xt_status copy_aligned(xt_pin *pin, const ErlNifBinary *binary, xt_error *error) {
  pin->block = xt_memory_alloc(binary->size);
  if (!pin->block) {
    xt_memory_refused(); /* resets the reason */
    xt_error_set(error, XT_STATUS_limit,
                 "cannot allocate %zu bytes for an aligned copy of the binary; release tensors or raise `config "
                 ":extorch, budget:`",
                 binary->size);
    error->collect = true;
    return error->status;
  }
  memcpy(pin->block, binary->data, binary->size);
  enif_clear_env(pin->env);
  return XT_STATUS_ok;
}

/* tensor_from_binary(binary, shape, dtype) :: {:ok, tensor, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_tensor_from_binary(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  int64_t sizes[XT_MAX_DIMS], strides[XT_MAX_DIMS];
  xt_foreign memory = {.device = {XT_DEVICE_CPU, -1}, .release = xt_pin_release, .sizes = sizes, .strides = strides};
  ErlNifBinary binary;
  ERL_NIF_TERM copy;
  xt_tensor *tensor = NULL;
  xt_error error;
  if (!enif_inspect_binary(env, argv[0], &binary) || !xt_get_dims(env, argv[1], sizes, &memory.ndim) ||
      !xt_get_dtype(env, argv[2], &memory.dtype))
    return enif_make_badarg(env);
  xt_status status = check_size(memory.dtype, sizes, memory.ndim, strides, binary.size, &error);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_pin *pin = xt_pin_new();
  if (!pin || !xt_pin_term(pin, argv[0], &copy)) {
    if (pin) xt_pin_release(pin);
    return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while pinning the binary");
  }
  enif_inspect_binary(pin->env, copy, &binary);
  bool aligned = xt_dtype_aligned(binary.data, memory.dtype);
  if (!aligned && binary.size > BRIEF_BYTES && on_normal_scheduler()) {
    xt_pin_release(pin);
    return enif_schedule_nif(env, "tensor_from_binary", XT_DIRTY_CPU, xt_nif_tensor_from_binary, argc, argv);
  }
  if (!aligned && copy_aligned(pin, &binary, &error) != XT_STATUS_ok) {
    xt_pin_release(pin);
    return xt_make_error(env, &error);
  }
  memory.data = aligned ? binary.data : pin->block;
  memory.owner = pin;
  xt_frozen_add(&pin->frozen, memory.data, binary.size);
  status = xt_torch->tensor_foreign(&memory, &tensor, &error);
  return xt_make_tensor_result(env, status, tensor, &error);
}

/* ---- Tensor to binary ---- */

static void release_handle(void *handle) { xt_tensor_drop(handle); }

/* Takes ownership of the reference to the handle. */
static ERL_NIF_TERM make_binary(ErlNifEnv *env, xt_tensor *handle) {
  const xt_tensor_info *info = &handle->info;
  if (!info->span) {
    xt_tensor_drop(handle);
    return xt_make_ok(env, xt_make_text(env, "", 0));
  }
  /* The binary has its own reference to the handle, so the memory outlives release/1. */
  ERL_NIF_TERM binary = xt_make_frozen_binary(env, info->data, info->span, handle, release_handle);
  if (binary == xt_am_nil) return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while copying the tensor");
  return xt_make_ok(env, binary);
}

static bool can_share(const xt_tensor_info *info) {
  return info->plain && info->contiguous && info->device.type == XT_DEVICE_CPU;
}

/* Makes the binary if that takes microseconds: nothing has to be copied, and no call has to be waited for. */
static bool make_brief(ErlNifEnv *env, xt_tensor *handle, ERL_NIF_TERM *out) {
  ERL_NIF_TERM binary;
  const xt_tensor_info *info = &handle->info;
  if (!can_share(info)) return false;
  if (!info->span) *out = make_binary(env, handle);
  else if (xt_make_still_binary(env, info->data, info->span, handle, release_handle, &binary))
    *out = xt_make_ok(env, binary);
  else return false;
  return true;
}

static xt_status copy_plain(const xt_tensor *handle, xt_tensor **out, xt_error *error) {
  if (!handle->info.strides || handle->info.scheme)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "cannot convert a sparse or quantized tensor to a binary; use \"to_dense\", \"int_repr\" or "
                        "\"dequantize\" first");
  return xt_torch->tensor_plain(handle, out, error);
}

/* tensor_to_binary(tensor) :: {:ok, binary, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_tensor_to_binary(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  xt_tensor *handle = NULL, *copy = NULL;
  xt_error error;
  if (!xt_get_tensor(env, argv[0], &resource)) return enif_make_badarg(env);
  if (xt_tensor_take(resource, &handle, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  if (on_normal_scheduler()) {
    ERL_NIF_TERM result;
    if (make_brief(env, handle, &result)) return result;
    xt_tensor_drop(handle);
    return enif_schedule_nif(env, "tensor_to_binary", XT_DIRTY_CPU, xt_nif_tensor_to_binary, argc, argv);
  }
  if (can_share(&handle->info)) return make_binary(env, handle);
  xt_status status = copy_plain(handle, &copy, &error);
  if (status == XT_STATUS_ok && (status = xt_tensor_check_memory(handle, &error)) != XT_STATUS_ok) xt_tensor_drop(copy);
  xt_tensor_drop(handle);
  return status == XT_STATUS_ok ? make_binary(env, copy) : xt_make_error(env, &error);
}
