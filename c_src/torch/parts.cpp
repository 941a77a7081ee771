/* The parts of composite tensors: indices of sparse tensors, scales and zero points of quantized ones. LibTorch trusts
 * their values, and an index outside the shape makes it read or write other memory. So they are checked when a tensor
 * gets its handle, and frozen for as long as the handle lives. */
#include "torch/shim.hpp"

namespace xt {
namespace {

bool is_compressed(at::Layout layout) {
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr || layout == at::kSparseBsc;
}

bool has_rows(at::Layout layout) { return layout == at::kSparseCsr || layout == at::kSparseBsr; }

/* crow_indices or ccol_indices */
at::Tensor compressed_indices(const at::Tensor &tensor) {
  return has_rows(tensor.layout()) ? tensor.crow_indices() : tensor.ccol_indices();
}

/* col_indices or row_indices */
at::Tensor plain_indices(const at::Tensor &tensor) {
  return has_rows(tensor.layout()) ? tensor.col_indices() : tensor.row_indices();
}

std::vector<at::Tensor> parts_of(const at::Tensor &tensor) {
  if (tensor.layout() == at::kSparse) return {tensor._indices()};
  if (is_compressed(tensor.layout())) return {compressed_indices(tensor), plain_indices(tensor)};
  if (tensor.is_quantized() && tensor.qscheme() != at::kPerTensorAffine && tensor.qscheme() != at::kPerTensorSymmetric)
    return {tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()};
  return {};
}

[[noreturn]] void fail_range() {
  fail(XT_STATUS_bad_argument, "the indices of the sparse tensor do not match its shape; check them, or create it with "
                               "\"sparse_coo_tensor\" or \"sparse_compressed_tensor\"");
}

void check_range(const at::Tensor &indices, int64_t size) {
  if (!indices.numel()) return;
  if (indices.min().item<int64_t>() < 0 || indices.max().item<int64_t>() >= size) fail_range();
}

void check_coo(const at::Tensor &tensor) {
  at::Tensor indices = tensor._indices();
  if (indices.dim() != 2 || indices.size(0) != tensor.sparse_dim() || indices.size(1) != tensor._values().size(0))
    fail_range();
  for (int64_t d = 0; d < tensor.sparse_dim(); d++) check_range(indices.select(0, d), tensor.size(d));
}

void check_compressed(const at::Tensor &tensor) {
  at::Tensor compressed = compressed_indices(tensor), plain = plain_indices(tensor), values = tensor.values();
  int64_t batch = compressed.dim() - 1;
  bool blocks = tensor.layout() == at::kSparseBsr || tensor.layout() == at::kSparseBsc;
  if (batch < 0 || plain.dim() != batch + 1 || tensor.dim() < batch + 2 || values.dim() < batch + (blocks ? 3 : 1) ||
      values.size(batch) != plain.size(batch) || compressed.size(batch) < 1)
    fail_range();
  int64_t count = plain.size(batch), lines[2];
  for (int i = 0; i < 2; i++) {
    int64_t block = blocks ? values.size(batch + 1 + i) : 1;
    if (!block || tensor.size(batch + i) % block) fail_range();
    lines[i] = tensor.size(batch + i) / block;
  }
  if (!has_rows(tensor.layout())) std::swap(lines[0], lines[1]);
  if (compressed.size(batch) != lines[0] + 1) fail_range();
  check_range(plain, lines[1]);
  if (!compressed.numel()) return;
  if (compressed.select(batch, 0).ne(0).any().item<bool>() ||
      compressed.select(batch, -1).ne(count).any().item<bool>() || compressed.diff().lt(0).any().item<bool>())
    fail_range();
}

} // namespace

FrozenParts::FrozenParts(const at::Tensor &tensor) {
  std::vector<at::Tensor> parts = parts_of(tensor);
  if (is_sparse(tensor.layout())) {
    at::Tensor values = tensor.layout() == at::kSparse ? tensor._values() : tensor.values();
    if (values.has_storage()) values.storage().unsafeGetStorageImpl()->set_resizable(false);
  }
  for (size_t i = 0; i < parts.size(); i++) {
    const at::Tensor &part = parts[i];
    if (!part.has_storage() || !part.numel()) continue;
    part.storage().unsafeGetStorageImpl()->set_resizable(false);
    host->freeze(&ranges[i], part.data_ptr(), span_of(part));
    if (host->writers(part.data_ptr(), span_of(part)) == XT_WRITERS_NONE) continue;
    release();
    fail(XT_STATUS_busy, "another process is writing to the indices or scales of the tensor; give each its own copy");
  }
  try {
    if (tensor.layout() == at::kSparse && tensor.device().is_cpu()) check_coo(tensor);
    if (is_compressed(tensor.layout()) && tensor.device().is_cpu()) check_compressed(tensor);
  } catch (...) {
    release();
    throw;
  }
}

void FrozenParts::release() {
  for (auto &range : ranges) host->unfreeze(&range);
}

bool is_sparse(at::Layout layout) { return layout == at::kSparse || is_compressed(layout); }

bool has_parts(const at::Tensor &tensor) {
  return !tensor.is_meta() && (is_sparse(tensor.layout()) || tensor.is_quantized());
}

at::Tensor with_own_indices(const at::Tensor &tensor) {
  if (is_compressed(tensor.layout()))
    return at::_sparse_compressed_tensor_unsafe(compressed_indices(tensor).clone(), plain_indices(tensor).clone(),
                                                tensor.values().alias(), tensor.sizes(), tensor.options());
  return at::_sparse_coo_tensor_unsafe(tensor._indices().clone(), tensor._values().alias(), tensor.sizes(),
                                       tensor.options())
      ._coalesced_(tensor.is_coalesced());
}

} // namespace xt
