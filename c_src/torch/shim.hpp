/* What the C++ files share: the differences between LibTorch versions, and the guard that every entry runs in. */
#ifndef XT_TORCH_SHIM_HPP
#define XT_TORCH_SHIM_HPP

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <string>

#include "torch/torch.h"

namespace xt {

extern const xt_torch_host *host;

/* ---- What differs between LibTorch versions (XT_TORCH_VERSION: 113, 206, 214 …) ---- */

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

/* ---- Guard: every entry runs inside, nothing leaves but a status ---- */

struct Refusal {
  xt_status status;
  std::string message;
};

[[noreturn]] inline void refuse(xt_status status, std::string message) { throw Refusal{status, std::move(message)}; }

/* The error of what LibTorch threw. */
xt_status torch_failed(xt_error *error, const char *what);

template <class Body> xt_status guarded(xt_error *error, Body body) noexcept {
  try {
    body();
    return XT_STATUS_ok;
  } catch (const Refusal &refusal) {
    return xt_error_set(error, refusal.status, "%s", refusal.message.c_str());
  } catch (const c10::Error &thrown) {
    return torch_failed(error, thrown.what_without_backtrace());
  } catch (const std::exception &thrown) {
    return torch_failed(error, thrown.what());
  } catch (...) {
    return xt_error_set(error, XT_STATUS_torch, "LibTorch threw something that is no exception");
  }
}

/* For all that may reach an operator. */
template <class Body> xt_status guard(xt_error *error, Body body) noexcept {
  static SilentWarnings silent;
  if (!host->enter()) return xt_error_set(error, XT_STATUS_stopping, "the node is stopping");
  struct Leave {
    ~Leave() { host->leave(); }
  } leave;
  return guarded(error, [&] {
    c10::InferenceMode no_gradients;
    warning::WarningHandlerGuard quiet(&silent);
    host->refused(); /* forget an older answer */
    body();
  });
}

/* ---- tensors.cpp ---- */

const at::Tensor &unwrap(const xt_tensor *tensor);
xt_tensor *wrap(at::Tensor tensor);
void destroy(xt_reapable *item);
bool is_strided(const at::Tensor &tensor);
size_t span_of(const at::Tensor &tensor);
at::ScalarType scalar_type(xt_dtype dtype);

bool has_dtype(xt_dtype dtype);
xt_status tensor_empty(xt_dtype dtype, int ndim, const int64_t *sizes, xt_tensor **out, xt_error *error);
xt_status tensor_foreign(const xt_foreign *memory, xt_tensor **out, xt_error *error);
xt_status tensor_mark(const xt_tensor *tensor, bool requires_grad, xt_tensor **out, xt_error *error);
xt_status tensor_plain(const xt_tensor *tensor, xt_tensor **out, xt_error *error);
xt_status tensor_to(const xt_tensor *tensor, xt_dtype dtype, xt_device device, xt_tensor **out, xt_error *error);
xt_status tensor_equal(const xt_tensor *a, const xt_tensor *b, bool *equal, xt_error *error);

/* ---- devices.cpp ---- */

at::Device device_of(xt_device device);
xt_device device_from(const at::Device &device);

int cuda_count();
bool has_mps();
xt_status cuda_memory(int index, size_t *free, size_t *total, xt_error *error);

/* ---- operators.cpp ---- */

xt_status op(const xt_op_call *call, xt_arena *arena, xt_value **values, size_t *count, xt_error *error);

/* ---- libtorch_archive.cpp ---- */

xt_status archive_save(const xt_archive_item *items, size_t count, const xt_archive_io *io, xt_error *error);
xt_status archive_load(const xt_archive_io *io, xt_archive_items *out, xt_error *error);

} // namespace xt

#endif
