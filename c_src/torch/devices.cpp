/* Devices: conversion between xt_device and at::Device, which devices are available, and CUDA memory. */
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include "torch/shim.hpp"

namespace xt {

int cuda_count() {
  try {
    return at::hasCUDA() ? c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount() : 0;
  } catch (...) {
    return 0;
  }
}

bool has_mps() { return at::hasMPS(); }

at::Device to_torch_device(xt_device device) {
  switch (device.type) {
  case XT_DEVICE_CPU: return at::Device(at::kCPU);
  case XT_DEVICE_META: return at::Device(at::kMeta);
  case XT_DEVICE_MPS:
    if (!has_mps())
      fail(XT_STATUS_unsupported, "device mps is not available: the linked LibTorch has no Metal support");
    return at::Device(at::kMPS);
  case XT_DEVICE_CUDA: {
    int count = cuda_count();
    if (!count)
      fail(XT_STATUS_unsupported, at::hasCUDA()
                                      ? "device cuda is not available: no CUDA device was found"
                                      : "device cuda is not available: the linked LibTorch (" TORCH_VERSION_TEXT
                                        ") is built without CUDA; use device: :cpu");
    if (device.index >= count)
      fail(XT_STATUS_unsupported, "device cuda:" + std::to_string(device.index) + " is not available: found " +
                                      std::to_string(count) + " CUDA devices");
    return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device.index < 0 ? 0 : device.index));
  }
  default: fail(XT_STATUS_unsupported, "unsupported device; expected cpu, cuda, mps or meta");
  }
}

xt_device from_torch_device(const at::Device &device) {
  int index = device.has_index() ? device.index() : -1;
  switch (device.type()) {
  case at::kCPU: return {XT_DEVICE_CPU, -1};
  case at::kCUDA: return {XT_DEVICE_CUDA, index < 0 ? 0 : index};
  case at::kMPS: return {XT_DEVICE_MPS, -1};
  case at::kMeta: return {XT_DEVICE_META, -1};
  default: return {XT_DEVICE_OTHER, index};
  }
}

xt_status cuda_memory(int index, size_t *free, size_t *total, xt_error *error) {
  return guard(error, [&] {
    to_torch_device({XT_DEVICE_CUDA, index});
    /* The CUDA runtime is a dependency of this library, so dlsym on this library's handle finds its functions without
     * CUDA's headers. */
    Dl_info self;
    void *library = dladdr(reinterpret_cast<void *>(cuda_memory), &self)
                        ? dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                        : nullptr;
    auto set_device = library ? reinterpret_cast<int (*)(int)>(dlsym(library, "cudaSetDevice")) : nullptr;
    auto get_info = library ? reinterpret_cast<int (*)(size_t *, size_t *)>(dlsym(library, "cudaMemGetInfo")) : nullptr;
    if (library) dlclose(library);
    if (!set_device || !get_info)
      fail(XT_STATUS_unsupported, "cannot query CUDA memory: the CUDA runtime was not found");
    if (set_device(index) != 0 || get_info(free, total) != 0)
      fail(XT_STATUS_torch, "cannot query CUDA memory: cudaMemGetInfo failed");
  });
}

} // namespace xt
