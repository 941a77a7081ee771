/* The entry point of extorch_torch.so, LibTorch's errors and allocator, and the settings of the whole process. */
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Logging.h>

#include <functional>

#include "torch/operators.hpp"
#include "torch/shim.hpp"

namespace xt {

const xt_torch_host *host;

/* ---- Errors ---- */

namespace {

enum { REFUSED_NOT, REFUSED_BUDGET, REFUSED_MACHINE }; /* xt_refused */

/* LibTorch's messages run on for pages (lists of backends, hints about C++); the first paragraph says what happened. */
std::string first_paragraph(std::string text) {
  for (const char *end : {"\nException raised from", "\n\n", ". '", "  This could be because"}) {
    auto at = text.find(end);
    if (at != std::string::npos && at > 0) text.resize(at);
  }
  return text;
}

} // namespace

xt_status torch_failed(xt_error *error, const char *what) {
  switch (host->refused()) {
  case REFUSED_BUDGET:
    xt_error_set(error, XT_STATUS_limit,
                 "the budget of native memory is used up; release tensors or raise `config :extorch, budget:`");
    error->collect = true;
    return error->status;
  case REFUSED_MACHINE:
    return xt_error_set(error, XT_STATUS_no_memory, "the system has no memory left for this tensor");
  }
  if (strstr(what, "storage that is not resizable"))
    return xt_error_set(error, XT_STATUS_forbidden,
                        "this would move memory that others may see; make a new tensor of the wanted shape instead");
  return xt_error_set(error, XT_STATUS_torch, "%s", first_paragraph(what).c_str());
}

namespace {

/* ---- Memory: all CPU allocations are counted and within the budget ---- */

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

/* ---- The process ---- */

void manual_seed(uint64_t seed) {
  xt_error ignored;
  guard(&ignored, [&] { at::manual_seed(seed); });
}

int num_threads() { return at::get_num_threads(); }

void set_num_threads(int threads) {
  xt_error ignored;
  guard(&ignored, [&] { at::set_num_threads(threads); });
}

const xt_torch_api api = {
    .version = TORCH_VERSION_TEXT,
    .set_num_threads = set_num_threads,
    .num_threads = num_threads,
    .has_dtype = has_dtype,
    .cuda_count = cuda_count,
    .has_mps = has_mps,
    .cuda_memory = cuda_memory,
    .manual_seed = manual_seed,
    .tensor_empty = tensor_empty,
    .tensor_foreign = tensor_foreign,
    .tensor_mark = tensor_mark,
    .tensor_plain = tensor_plain,
    .tensor_to = tensor_to,
    .tensor_equal = tensor_equal,
    .op = op,
    .archive_save = archive_save,
    .archive_load = archive_load,
};

} // namespace
} // namespace xt

extern "C" __attribute__((visibility("default"))) xt_status xt_torch_open(const xt_torch_host *given,
                                                                          const xt_torch_api **out, xt_error *error) {
  if (given->abi != XT_TORCH_ABI)
    return xt_error_set(error, XT_STATUS_torch,
                        "extorch.so and extorch_torch.so are of different builds: run make again");
  xt::host = given;
  return xt::guard(error, [&] {
    static xt::CountedAllocator allocator;
    c10::SetCPUAllocator(&allocator);
    /* Symbolising a backtrace takes milliseconds an exception, and nobody would read it. */
    c10::SetStackTraceFetcher(std::function<std::string()>([] { return std::string(); }));
    xt::list_operators(); /* a few milliseconds, here rather than in the first call */
    *out = &xt::api;
  });
}
