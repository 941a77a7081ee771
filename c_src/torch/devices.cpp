/* Devices: conversion between xt_device and at::Device, which devices there are, their memory, and waiting for them. */
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <atomic>
#include <cstring>

#if XT_TORCH_VERSION >= 210
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include "torch/shim.hpp"

namespace xt {
namespace {

/* COMPILE_TIME_MAX_DEVICE_TYPES stands for a type that this LibTorch does not have. */
const at::DeviceType torch_types[] = {at::DeviceType::CPU,  at::DeviceType::CUDA, at::DeviceType::MPS,
                                      at::DeviceType::Meta, at::DeviceType::XPU,  at::DeviceType::HPU,
#if XT_TORCH_VERSION >= 200
                                      at::DeviceType::MTIA,
#else
    at::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES,
#endif
                                      at::DeviceType::XLA,  at::DeviceType::IPU,  at::DeviceType::PrivateUse1};
static_assert(sizeof torch_types / sizeof *torch_types == XT_DEVICE_OTHER, "one for each type of device");

const char *const names[] = {
#define XT_DEVICE_TEXT(name, text) text,
    XT_DEVICES(XT_DEVICE_TEXT)
#undef XT_DEVICE_TEXT
};

std::string name_of(xt_device_type type) {
  const char *renamed = type == XT_DEVICE_PRIVATE ? private_name() : nullptr;
  return renamed ? renamed : names[type];
}

[[noreturn]] void fail_unavailable(xt_device_type type, int count) {
  std::string why = "device " + name_of(type) + " is not available: ";
  if (type == XT_DEVICE_CUDA)
    why += count < 0 ? "the linked LibTorch (" TORCH_VERSION_TEXT ") is built without CUDA; use device: :cpu"
                     : "no CUDA device was found; use device: :cpu";
  else if (type == XT_DEVICE_MPS) why += "the linked LibTorch has no Metal support, or this machine has no such device";
  else if (count < 0)
    why += "LibTorch " TORCH_VERSION_TEXT " has no backend of this name; load the library that registers it with "
           "ExTorch.Device.load_library/1, or use device: :cpu";
  else why += "no such device was found; use device: :cpu";
  fail(XT_STATUS_unsupported, why);
}

} // namespace

const char *private_name() {
#if XT_TORCH_VERSION >= 200
  /* The name can be set once. Until then it is "privateuseone". */
  static std::atomic<const char *> known{nullptr};
  const char *name = known.load();
  if (name) return name;
  try {
    std::string text = c10::get_privateuse1_backend();
    if (text == "privateuseone" || text.size() >= XT_DEVICE_NAME) return nullptr;
    name = strdup(text.c_str());
  } catch (...) {
    return nullptr;
  }
  const char *expected = nullptr;
  if (known.compare_exchange_strong(expected, name)) return name;
  free(const_cast<char *>(name));
  return expected;
#else
  return nullptr;
#endif
}

xt_device_type device_type_from_name(const std::string &name) {
  const char *renamed = private_name();
  int type = 0;
  if (renamed && name == renamed) return XT_DEVICE_PRIVATE;
  while (type < XT_DEVICE_OTHER && name != names[type]) type++;
  return static_cast<xt_device_type>(type);
}

int device_count(xt_device_type type) {
  if (type == XT_DEVICE_CPU || type == XT_DEVICE_META) return 1;
  at::DeviceType torch = torch_types[type];
  try {
    if (torch == at::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES || !c10::impl::hasDeviceGuardImpl(torch)) return -1;
    if (type == XT_DEVICE_MPS) return at::hasMPS();
    int count = c10::impl::getDeviceGuardImpl(torch)->deviceCount();
    return count < XT_MAX_DEVICES ? count : XT_MAX_DEVICES;
  } catch (...) {
    return 0;
  }
}

at::Device to_torch_device(xt_device device) {
  if (device.type == XT_DEVICE_OTHER) fail(XT_STATUS_unsupported, "unsupported device; see ExTorch.Device");
  if (device.type == XT_DEVICE_CPU) return at::Device(at::kCPU);
  if (device.type == XT_DEVICE_META) return at::Device(at::kMeta);
  int count = device_count(device.type);
  if (count <= 0) fail_unavailable(device.type, count);
  if (device.index >= count)
    fail(XT_STATUS_unsupported, "device " + name_of(device.type) + ":" + std::to_string(device.index) +
                                    " is not available: found " + std::to_string(count) +
                                    (count == 1 ? " such device" : " such devices"));
  if (device.type == XT_DEVICE_MPS) return at::Device(at::kMPS);
  return at::Device(torch_types[device.type], static_cast<c10::DeviceIndex>(device.index < 0 ? 0 : device.index));
}

xt_device from_torch_device(const at::Device &device) {
  int index = device.has_index() ? device.index() : 0;
  for (int type = 0; type < XT_DEVICE_OTHER; type++)
    if (torch_types[type] == device.type()) {
      bool single = type == XT_DEVICE_CPU || type == XT_DEVICE_META || type == XT_DEVICE_MPS;
      return {static_cast<xt_device_type>(type), single ? -1 : index};
    }
  return {XT_DEVICE_OTHER, index};
}

namespace {

void cuda_memory(int index, size_t *free, size_t *total) {
  /* The CUDA runtime is a dependency of this library, so dlsym on this library's handle finds its functions without
   * CUDA's headers. */
  Dl_info self;
  void *library =
      dladdr(reinterpret_cast<void *>(cuda_memory), &self) ? dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  auto set_device = library ? reinterpret_cast<int (*)(int)>(dlsym(library, "cudaSetDevice")) : nullptr;
  auto get_info = library ? reinterpret_cast<int (*)(size_t *, size_t *)>(dlsym(library, "cudaMemGetInfo")) : nullptr;
  if (library) dlclose(library);
  if (!set_device || !get_info) fail(XT_STATUS_unsupported, "cannot query CUDA memory: the CUDA runtime was not found");
  if (set_device(index) != 0 || get_info(free, total) != 0)
    fail(XT_STATUS_torch, "cannot query CUDA memory: cudaMemGetInfo failed");
}

} // namespace

xt_status device_memory(xt_device device, size_t *free, size_t *total, xt_error *error) {
  return guard(error, [&] {
    at::Device place = to_torch_device(device);
    if (device.type == XT_DEVICE_CUDA) return cuda_memory(place.index(), free, total);
#if XT_TORCH_VERSION >= 210
    auto *allocator = dynamic_cast<c10::DeviceAllocator *>(c10::GetAllocator(place.type()));
    if (allocator) {
      auto [available, all] = allocator->getMemoryInfo(place.has_index() ? place.index() : 0);
      *free = available;
      *total = all;
      return;
    }
#endif
    fail(XT_STATUS_unsupported, "the backend of " + name_of(device.type) +
                                    " does not tell its memory to LibTorch " TORCH_VERSION_TEXT
                                    "; ExTorch.Memory.live/0 has what tensors of ExTorch hold");
  });
}

xt_status device_synchronize(xt_device device, xt_error *error) {
  return guard(error, [&] {
    at::Device place = to_torch_device(device);
    if (device.type == XT_DEVICE_CPU || device.type == XT_DEVICE_META) return;
    auto *impl = c10::impl::getDeviceGuardImpl(place.type());
#if XT_TORCH_VERSION >= 206
    if (!place.has_index()) place.set_index(0);
    try {
      return impl->synchronizeDevice(place.index());
    } catch (const c10::Error &) { /* a backend that has only streams */
    }
#endif
    impl->synchronizeStream(impl->getStream(place));
  });
}

} // namespace xt
