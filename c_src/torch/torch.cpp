/* The entry point of extorch_torch.so: error messages, the CPU allocator, process-wide settings and the API table. */
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Logging.h>

#include <functional>

#include "torch/operators.hpp"
#include "torch/shim.hpp"

namespace xt {

const xt_torch_host *host;

/* ---- Errors ---- */

namespace {

/* Shortens a LibTorch message. The first paragraph describes the error; what follows (lists of backends, hints about
 * C++) can be several pages long. */
std::string first_paragraph(std::string text) {
  for (const char *end : {"\nException raised from", "\n\n", ". '", "  This could be because"}) {
    auto at = text.find(end);
    if (at != std::string::npos && at > 0) text.resize(at);
  }
  return text;
}

} // namespace

std::string first_line(std::string text) { return text.substr(0, text.find('\n')); }

xt_status set_torch_error(xt_error *error, const char *message) {
  switch (host->alloc_status()) {
  case XT_STATUS_limit: return xt_error_budget(error);
  case XT_STATUS_no_memory: return xt_error_set(error, XT_STATUS_no_memory, "the system is out of memory");
  default: break;
  }
  if (strstr(message, "storage that is not resizable"))
    return xt_error_set(
        error, XT_STATUS_forbidden,
        "the operator would reallocate memory that may be shared; create a new tensor of that shape instead");
  return xt_error_set(error, XT_STATUS_torch, "%s", first_paragraph(message).c_str());
}

namespace {

/* ---- Memory ---- */

/* Counts all CPU allocations of LibTorch against the budget. */

struct CountedAllocator final : at::Allocator {
  at::DataPtr allocate(size_t size) XT_ALLOCATE_CONST override {
    void *data = size ? host->alloc(size) : nullptr;
    if (size && !data) throw std::bad_alloc();
    return {data, data, host->free, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return host->free; }
#if XT_TORCH_VERSION >= 200
  void copy_data(void *to, const void *from, std::size_t size) const override { default_copy_data(to, from, size); }
#endif
};

/* ---- Process-wide settings ---- */

void manual_seed(uint64_t seed) {
  xt_error ignored;
  guard(&ignored, [&] { at::manual_seed(seed); });
}

int num_threads() { return at::get_num_threads(); }

void set_num_threads(int threads) {
  xt_error ignored;
  guard(&ignored, [&] { at::set_num_threads(threads); });
}

/* Returns "MAJOR.MINOR" of the LibTorch that is loaded, or an empty string. */
std::string loaded_version() {
  static const std::string label = "TORCH_VERSION=";
  std::string config = at::show_config();
  size_t start = config.find(label);
  if (start == std::string::npos) return "";
  start += label.size();
  return config.substr(start, config.find('.', config.find('.', start) + 1) - start);
}

/* LibTorch keeps its C++ interface within a minor version only. Most other versions lack symbols and are not loaded. */
xt_status check_version(xt_error *error) {
  std::string loaded = loaded_version();
  if (loaded.empty() || !strncmp(TORCH_VERSION_TEXT, (loaded + ".").c_str(), loaded.size() + 1)) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_not_loaded,
                      "LibTorch %s is loaded, but ExTorch was built with " TORCH_VERSION_TEXT
                      ". Install that one, or put it into the release (config :extorch, bundle_libtorch: true). Build "
                      "ExTorch again: mix deps.compile extorch --force",
                      loaded.c_str());
}

const xt_torch_api api = {
    .version = TORCH_VERSION_TEXT,
    .set_num_threads = set_num_threads,
    .num_threads = num_threads,
    .has_dtype = has_dtype,
    .manual_seed = manual_seed,
    .device_count = device_count,
    .private_name = private_name,
    .device_memory = device_memory,
    .device_synchronize = device_synchronize,
    .tensor_empty = tensor_empty,
    .tensor_foreign = tensor_foreign,
    .tensor_set_requires_grad = tensor_set_requires_grad,
    .tensor_plain = tensor_plain,
    .tensor_to = tensor_to,
    .tensor_bytes = tensor_bytes,
    .tensor_view = tensor_view,
    .stager_new = stager_new,
    .stager_take = stager_take,
    .stager_copy = stager_copy,
    .stager_pass = stager_pass,
    .stager_done = stager_done,
    .stager_free = stager_free,
    .tensor_equal = tensor_equal,
    .op = op,
    .archive_save = archive_save,
    .archive_load = archive_load,
};

} // namespace
} // namespace xt

extern "C" __attribute__((visibility("default"))) xt_status xt_torch_open(const xt_torch_host *host,
                                                                          const xt_torch_api **out, xt_error *error) {
  if (host->abi != XT_TORCH_ABI)
    return xt_error_set(error, XT_STATUS_torch,
                        "extorch.so and extorch_torch.so come from different builds; run make again");
  xt::host = host;
  if (xt_status status = xt::check_version(error)) return status;
  return xt::guard(error, [&] {
    static xt::CountedAllocator allocator;
    c10::SetCPUAllocator(&allocator);
    /* Symbolizing a backtrace takes milliseconds per exception, and the backtrace is never shown. */
    c10::SetStackTraceFetcher(std::function<std::string()>([] { return std::string(); }));
    xt::load_operators(); /* takes a few milliseconds; done here so that the first call is not slow */
    *out = &xt::api;
  });
}
