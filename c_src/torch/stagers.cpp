/* Stagers: copies to a device through a few pinned buffers, while the caller fills the next one. */
#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "torch/shim.hpp"

namespace {

struct Buffer {
  at::Tensor bytes;
  bool in_progress = false;
  std::unique_ptr<c10::Event> event;
  std::vector<at::Tensor> targets; /* of the copies in progress */
};

} // namespace

struct xt_stager {
  explicit xt_stager(at::Device place) : device(place) {}
  xt_stager(const xt_stager &) = delete;
  ~xt_stager() {
    if (charged) xt::host->discharge(charged);
  }

  at::Device device;
  at::Allocator *allocator = nullptr; /* of pinned memory; NULL if the backend has none */
  size_t size = 0;                    /* of a buffer */
  int64_t charged = 0;                /* bytes of the buffers */
  bool waits = false;                 /* the backend has no events */
  size_t current = 0;
  std::vector<Buffer> buffers;
};

namespace xt {
namespace {

at::Allocator *pinned_allocator(at::DeviceType type) {
  try {
#if XT_TORCH_VERSION >= 206
    return at::globalContext().getPinnedMemoryAllocator(type);
#else
    return type == at::kCUDA ? at::detail::getCUDAHooks().getPinnedMemoryAllocator() : nullptr;
#endif
  } catch (const std::exception &) { /* a backend without pinned memory */
    return nullptr;
  }
}

at::Tensor host_bytes(at::Allocator *allocator, size_t size) {
  if (!allocator) return at::empty({static_cast<int64_t>(size)}, at::kByte);
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size,
                                                             allocator->allocate(size), nullptr, false));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(at::kByte));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(size)});
  return tensor;
}

c10::Stream stream_of(at::Device device) { return c10::impl::getDeviceGuardImpl(device.type())->getStream(device); }

bool has_events(at::Device device) {
  try {
    c10::Event event(device.type());
    event.record(stream_of(device));
    event.query();
    return true;
  } catch (const std::exception &) {
    return false;
  }
}

/* Returns whether the copies from the buffer are done. */
bool is_free(Buffer &buffer) {
  if (buffer.in_progress && buffer.event && !buffer.event->query()) return false;
  buffer.in_progress = false;
  buffer.targets.clear();
  return true;
}

} // namespace

xt_status stager_new(xt_device device, size_t size, int count, xt_stager **out, xt_error *error) {
  return guard(error, [&] {
    auto stager = std::make_unique<xt_stager>(to_torch_device(device));
    c10::DeviceGuard here(stager->device);
    stager->allocator = pinned_allocator(stager->device.type());
    stager->waits = !has_events(stager->device);
    stager->size = size;
    stager->buffers.resize(static_cast<size_t>(count));
    *out = stager.release();
  });
}

/* Buffers are allocated when they are first used: a small load needs one. */
xt_status stager_take(xt_stager *stager, uint8_t **buffer, xt_error *error) {
  return guard(error, [&] {
    c10::DeviceGuard here(stager->device);
    auto &current = stager->buffers[stager->current];
    auto bytes = static_cast<int64_t>(stager->size);
    if (!current.bytes.defined()) {
      /* plain memory is counted by the CPU's allocator */
      if (stager->allocator && !host->charge(bytes)) throw std::bad_alloc();
      if (stager->allocator) stager->charged += bytes;
      current.bytes = host_bytes(stager->allocator, stager->size);
    }
    *buffer = is_free(current) ? static_cast<uint8_t *>(current.bytes.data_ptr()) : nullptr;
  });
}

xt_status stager_copy(xt_stager *stager, size_t from, const xt_tensor *to, size_t at, size_t size, xt_error *error) {
  return guard(error, [&] {
    auto &current = stager->buffers[stager->current];
    auto target = view_of(unwrap(to), at::kByte, {static_cast<int64_t>(size)}, {1}, static_cast<int64_t>(at));
    current.targets.push_back(target);
    current.in_progress = true;
    target.copy_(current.bytes.narrow(0, static_cast<int64_t>(from), static_cast<int64_t>(size)), !stager->waits);
  });
}

xt_status stager_pass(xt_stager *stager, xt_error *error) {
  return guard(error, [&] {
    auto &current = stager->buffers[stager->current];
    if (!stager->waits && current.in_progress) {
      c10::DeviceGuard here(stager->device);
      if (!current.event) current.event = std::make_unique<c10::Event>(stager->device.type());
      current.event->record(stream_of(stager->device));
    }
    stager->current = (stager->current + 1) % stager->buffers.size();
  });
}

xt_status stager_done(xt_stager *stager, bool *done, xt_error *error) {
  return guard(error, [&] {
    c10::DeviceGuard here(stager->device);
    *done = true;
    for (auto &buffer : stager->buffers) *done = is_free(buffer) && *done;
  });
}

/* A copy whose event was not recorded, because an error ended the load, is waited for with its stream. */
void stager_free(xt_stager *stager) {
  xt_error ignored;
  guard(&ignored, [&] {
    c10::DeviceGuard here(stager->device);
    bool busy = false;
    for (auto &buffer : stager->buffers) busy |= buffer.in_progress;
    if (busy && !stager->waits)
      c10::impl::getDeviceGuardImpl(stager->device.type())->synchronizeStream(stream_of(stager->device));
  });
  guard(&ignored, [&] { delete stager; });
}

} // namespace xt
