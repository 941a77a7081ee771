/* Counts the memory of devices that tensors of ExTorch hold. The allocators of the backends cannot be replaced as the
 * CPU's is: most of them are called directly. So each storage is counted once, when the first handle of it is made,
 * until its last handle is freed. What an operator allocates while it runs is not counted. */
#include <mutex>
#include <unordered_map>

#include "torch/shim.hpp"

namespace xt {
namespace {

struct Held {
  size_t handles;
  int64_t bytes; /* 0 for memory that belongs to something else */
  xt_device device;
};

std::mutex mutex;

/* Never destroyed: handles are freed until the process ends. */
std::unordered_map<c10::StorageImpl *, Held> &table() {
  static auto *storages = new std::unordered_map<c10::StorageImpl *, Held>();
  return *storages;
}

c10::StorageImpl *storage_of(const at::Tensor &tensor) {
  if (tensor.is_cpu() || tensor.is_meta() || !tensor.has_storage()) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

} // namespace

HeldStorage::HeldStorage(const at::Tensor &tensor, bool foreign) {
  auto *impl = storage_of(tensor);
  if (!impl) return;
  auto device = from_torch_device(tensor.device());
  std::lock_guard<std::mutex> lock(mutex);
  auto added = table().emplace(impl, Held{0, foreign ? 0 : static_cast<int64_t>(impl->nbytes()), device});
  auto &held = added.first->second;
  if (added.second && !host->device_charge(device, held.bytes)) {
    table().erase(added.first);
    throw Failure{XT_STATUS_limit,
                  "the memory budget of device " + tensor.device().str() +
                      " is exceeded; release tensors or raise it with ExTorch.Memory.set_budget/2",
                  true};
  }
  held.handles++;
  storage = impl;
}

HeldStorage::~HeldStorage() {
  if (!storage) return;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = table().find(storage);
  if (--found->second.handles) return;
  host->device_discharge(found->second.device, found->second.bytes);
  table().erase(found);
}

} // namespace xt
