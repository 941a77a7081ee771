/* Tensors over the memory of others. Most of them are read, saved or handed on as they are, so LibTorch's tensor is
 * made when something asks for it. */
#include <atomic>
#include <mutex>
#include <new>

#include "torch/shim.hpp"

namespace xt {
namespace {

struct Foreign : xt_tensor {
  at::Tensor tensor; /* set once `made` is; it then owns `owner` */
  std::atomic<bool> made{false};
  void *owner;
  void (*release)(void *owner);

  /* The sizes and strides follow the handle, in the same block. */
  int64_t *dims() { return reinterpret_cast<int64_t *>(this + 1); }
};

static_assert(sizeof(Foreign) % alignof(int64_t) == 0, "the sizes follow the handle");

void destroy_foreign(xt_reapable *item) {
  auto *foreign = static_cast<Foreign *>(reinterpret_cast<xt_tensor *>(item));
  /* A deleter may throw; there is no caller to report it to. */
  try {
    if (!foreign->made.load(std::memory_order_acquire)) foreign->release(foreign->owner);
    foreign->~Foreign();
  } catch (...) {
  }
  ::operator delete(foreign);
  host->tensor_count(-1);
}

/* Does not use at::from_blob: its checks abort the VM and its deleter costs an allocation. */
at::Tensor make_tensor(const xt_tensor_info &info, at::DataPtr data) {
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), info.storage_bytes,
                                                             std::move(data), nullptr, false));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(scalar_type(info.dtype)));
  auto ndim = static_cast<size_t>(info.ndim);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(info.sizes, ndim),
                                                      at::IntArrayRef(info.strides, ndim));
  return tensor;
}

void describe(const xt_foreign *memory, Foreign *foreign) {
  xt_tensor_info &info = foreign->info;
  auto ndim = static_cast<size_t>(memory->ndim);
  int64_t *sizes = foreign->dims(), *strides = sizes + ndim;
  std::copy_n(memory->sizes, ndim, sizes);
  std::copy_n(memory->strides, ndim, strides);
  size_t last = 0;
  info.numel = 1;
  info.contiguous = true;
  for (size_t d = ndim; d-- > 0;) {
    last += static_cast<size_t>((sizes[d] - 1) * strides[d]);
    if (sizes[d] != 1 && strides[d] != info.numel) info.contiguous = false;
    info.numel *= sizes[d];
  }
  if (!info.numel) info.contiguous = true;
  info.dtype = memory->dtype;
  info.device = from_torch_device(at::Device(at::kCPU));
  info.ndim = memory->ndim;
  info.sizes = sizes;
  info.strides = strides;
  info.plain = true;
  info.layout = static_cast<uint8_t>(at::kStrided);
  info.scheme = XT_SCHEME_NONE;
  info.data = info.numel ? memory->data : nullptr;
  info.span = info.numel ? (last + 1) * xt_dtype_get(memory->dtype)->size : 0;
  info.storage = memory->data;
  info.storage_bytes = info.span;
}

} // namespace

bool is_foreign(const xt_tensor *tensor) { return tensor->reapable.run == destroy_foreign; }

const at::Tensor &foreign_tensor(const xt_tensor *tensor) {
  static std::mutex making;
  auto *foreign = static_cast<Foreign *>(const_cast<xt_tensor *>(tensor));
  if (foreign->made.load(std::memory_order_acquire)) return foreign->tensor;
  std::lock_guard<std::mutex> lock(making);
  if (foreign->made.load(std::memory_order_relaxed)) return foreign->tensor;
  c10::InferenceMode normal(false); /* whichever mode the call that needs it runs in */
  at::Tensor made = make_tensor(foreign->info, at::DataPtr(const_cast<void *>(foreign->info.storage), at::kCPU));
  /* nothing below throws: from here on, LibTorch releases the memory */
  made.storage().unsafeGetStorageImpl()->set_data_ptr(
      at::DataPtr(const_cast<void *>(foreign->info.storage), foreign->owner, foreign->release, at::kCPU));
  foreign->tensor = std::move(made);
  foreign->made.store(true, std::memory_order_release);
  return foreign->tensor;
}

xt_status foreign_new(const xt_foreign *memory, xt_tensor **out, xt_error *error) {
  xt_status status = catch_errors(error, [&] {
    scalar_type(memory->dtype); /* fails if LibTorch does not have it */
    if (!xt_dtype_aligned(memory->data, memory->dtype))
      fail(XT_STATUS_bad_argument, std::string("the memory is not aligned for ") + xt_dtype_get(memory->dtype)->name);
    void *block = ::operator new(sizeof(Foreign) + 2 * static_cast<size_t>(memory->ndim) * sizeof(int64_t));
    auto *foreign = new (block) Foreign();
    foreign->reapable.run = destroy_foreign;
    foreign->references = 1;
    foreign->light = memory->light;
    foreign->owner = memory->owner;
    foreign->release = memory->release;
    describe(memory, foreign);
    host->tensor_count(+1);
    *out = foreign;
  });
  if (status != XT_STATUS_ok) memory->release(memory->owner);
  return status;
}

} // namespace xt
