/* Declarations shared by the C++ files: differences between LibTorch versions, error handling, and the functions behind
 * xt_torch_api. */
#ifndef XT_TORCH_SHIM_HPP
#define XT_TORCH_SHIM_HPP

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <string>

#include "torch/torch.h"

namespace xt {

extern const xt_torch_host *host;

/* ---- Differences between LibTorch versions (XT_TORCH_VERSION: 113, 206, 214 …) ---- */

#if XT_TORCH_VERSION >= 200
#define XT_ALLOCATE_CONST
namespace warning = c10::WarningUtils;
struct SilentWarnings : c10::WarningHandler {
  void process(const c10::Warning &) override {}
};
#else
#define XT_ALLOCATE_CONST const
namespace warning = c10::Warning;
struct SilentWarnings : c10::WarningHandler {
  void process(const c10::SourceLocation &, const std::string &, const bool) override {}
};
#endif

/* ---- Errors ---- */

struct Failure {
  xt_status status;
  std::string message;
  bool collect = false; /* the call may succeed after a garbage collection */
};

[[noreturn]] inline void fail(xt_status status, std::string message) {
  throw Failure{status, std::move(message), false};
}

/* The first line of a message of LibTorch. */
std::string first_line(std::string text);

/* Fills the error from the message of an exception that LibTorch threw. */
xt_status set_torch_error(xt_error *error, const char *message);

/* Runs body() and converts every exception to a status. */
template <class Body> xt_status catch_errors(xt_error *error, Body body) noexcept {
  try {
    body();
    return XT_STATUS_ok;
  } catch (const Failure &failure) {
    xt_error_set(error, failure.status, "%s", failure.message.c_str());
    error->collect = failure.collect;
    return error->status;
  } catch (const c10::OutOfMemoryError &thrown) {
    xt_error_set(error, XT_STATUS_no_memory, "%s", first_line(thrown.what_without_backtrace()).c_str());
    error->collect = true;
    return error->status;
  } catch (const c10::Error &thrown) {
    return set_torch_error(error, thrown.what_without_backtrace());
  } catch (const std::exception &thrown) {
    return set_torch_error(error, thrown.what());
  } catch (...) {
    return xt_error_set(error, XT_STATUS_torch, "LibTorch threw an unknown exception");
  }
}

/* Same as catch_errors, for code that may call an operator: enters the exit guard, disables gradients and silences
 * warnings. */
template <class Body> xt_status guard(xt_error *error, Body body) noexcept {
  static SilentWarnings silent;
  if (!host->enter()) return xt_error_set(error, XT_STATUS_stopping, "the node is stopping");
  struct Leave {
    ~Leave() { host->leave(); }
  } leave;
  return catch_errors(error, [&] {
    c10::InferenceMode no_gradients;
    warning::WarningHandlerGuard quiet(&silent);
    host->alloc_status(); /* resets the status of an earlier call */
    body();
  });
}

/* ---- tensors.cpp ---- */

const at::Tensor &unwrap(const xt_tensor *tensor);

/* Creates a handle. The storage is made non-resizable, since its address may be shared from now on. `foreign`: the
 * memory belongs to something else. */
xt_tensor *wrap(at::Tensor tensor, bool foreign = false);

/* Returns a view of a tensor of bytes, without the dispatcher. The offset is in elements of the type. */
at::Tensor view_of(const at::Tensor &bytes, at::ScalarType type, at::IntArrayRef sizes, at::IntArrayRef strides,
                   int64_t offset);

/* Frees a handle; the xt_reapable callback of every handle. */
void destroy(xt_reapable *item);

bool is_strided(const at::Tensor &tensor);

/* Returns the bytes from the first element to the end of the last one. The tensor must be strided. */
size_t span_of(const at::Tensor &tensor);

/* Fails if the linked LibTorch does not have the dtype. */
at::ScalarType scalar_type(xt_dtype dtype);

bool has_dtype(xt_dtype dtype);
xt_status tensor_empty(xt_dtype dtype, int ndim, const int64_t *sizes, xt_tensor **out, xt_error *error);
xt_status tensor_foreign(const xt_foreign *memory, xt_tensor **out, xt_error *error);
xt_status tensor_set_requires_grad(const xt_tensor *tensor, bool requires_grad, xt_tensor **out, xt_error *error);
xt_status tensor_plain(const xt_tensor *tensor, xt_tensor **out, xt_error *error);
xt_status tensor_to(const xt_tensor *tensor, xt_dtype dtype, xt_device device, xt_tensor **out, xt_error *error);
xt_status tensor_bytes(xt_device device, size_t size, xt_tensor **out, xt_error *error);
xt_status tensor_view(const xt_tensor *bytes, xt_dtype dtype, const xt_tensor_layout *layout, xt_tensor **out,
                      xt_error *error);
xt_status tensor_equal(const xt_tensor *a, const xt_tensor *b, bool *equal, xt_error *error);

/* ---- foreign.cpp ---- */

/* Whether a handle is one of memory on the CPU that is not LibTorch's. Its tensor is made by the first foreign_tensor.
 */
bool is_foreign(const xt_tensor *tensor);
const at::Tensor &foreign_tensor(const xt_tensor *tensor);
xt_status foreign_new(const xt_foreign *memory, xt_tensor **out, xt_error *error);

/* ---- parts.cpp ---- */

bool has_parts(const at::Tensor &tensor);

/* Freezes the parts of a sparse or quantized tensor, then checks the indices. Fails if another call is writing to them.
 */
class FrozenParts {
public:
  explicit FrozenParts(const at::Tensor &tensor);
  FrozenParts(const FrozenParts &) = delete;
  ~FrozenParts() { release(); }

private:
  void release();
  xt_frozen ranges[2] = {};
};

bool is_sparse(at::Layout layout);

/* Returns a sparse tensor with the same values and a copy of the indices: operators such as transpose_ change them in
 * place. */
at::Tensor with_own_indices(const at::Tensor &tensor);

/* ---- devices.cpp ---- */

/* Fails if the device is not available. */
at::Device to_torch_device(xt_device device);
xt_device from_torch_device(const at::Device &device);
xt_device_type device_type_from_name(const std::string &name); /* XT_DEVICE_OTHER if there is none */

int device_count(xt_device_type type);
const char *private_name();
xt_status device_memory(xt_device device, size_t *free, size_t *total, xt_error *error);
xt_status device_synchronize(xt_device device, xt_error *error);

/* ---- device_memory.cpp ---- */

/* Counts the storage of a tensor on a device as long as one of these holds it. Fails if the budget of the device would
 * be exceeded. Does nothing for the CPU, whose memory the allocator counts. */
class HeldStorage {
public:
  /* The memory of a foreign tensor belongs to something else, and is not counted. */
  HeldStorage(const at::Tensor &tensor, bool foreign);
  HeldStorage(const HeldStorage &) = delete;
  ~HeldStorage();

private:
  c10::StorageImpl *storage = nullptr;
};

/* ---- stagers.cpp ---- */

xt_status stager_new(xt_device device, size_t size, int count, xt_stager **out, xt_error *error);
xt_status stager_take(xt_stager *stager, uint8_t **buffer, xt_error *error);
xt_status stager_copy(xt_stager *stager, size_t from, const xt_tensor *to, size_t at, size_t size, xt_error *error);
xt_status stager_pass(xt_stager *stager, xt_error *error);
xt_status stager_done(xt_stager *stager, bool *done, xt_error *error);
void stager_free(xt_stager *stager);

/* ---- operators.cpp ---- */

xt_status op(const xt_op_call *call, xt_arena *arena, xt_value **values, size_t *count, xt_error *error);

/* ---- libtorch_archive.cpp ---- */

xt_status archive_save(const xt_archive_item *items, size_t count, const xt_archive_io *io, xt_error *error);
xt_status archive_load(const xt_archive_io *io, xt_archive_items *out, xt_error *error);

} // namespace xt

#endif
