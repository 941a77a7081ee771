/* Checks and prepares the arguments that an operator writes to. */
#include "torch/operators.hpp"
#include "torch/shim.hpp"

namespace xt {
namespace {

/* Some operators write to running statistics or noise in training mode although their schemas do not declare it with
 * (a!). */
bool writes_undeclared(const c10::FunctionSchema &schema, const Stack &stack, const std::string &parameter) {
  if (parameter != "running_mean" && parameter != "running_var" && parameter != "noise") return false;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto &name = schema.arguments()[i].name();
    if ((name == "training" || name == "train" || name == "use_input_stats") && stack[i].isBool())
      return stack[i].toBool();
  }
  return true;
}

} // namespace

Writes::~Writes() {
  for (auto &range : ranges) host->unfreeze(&range);
}

/* Registers the memory of a strided tensor. An out= operator first resizes its result, which may grow up to the end of
 * the storage. Returns false if some of it is frozen. */
bool Writes::add(const at::Tensor &tensor, bool can_grow) {
  const void *from = tensor.numel() ? tensor.data_ptr() : nullptr;
  size_t size = span_of(tensor);
  if (can_grow) {
    size_t offset = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
    size_t bytes = tensor.storage().nbytes();
    const auto *memory = static_cast<const char *>(tensor.storage().unsafeGetStorageImpl()->data());
    size = memory && offset < bytes ? bytes - offset : 0;
    from = size ? memory + offset : nullptr;
  }
  ranges.emplace_front();
  return host->write(&ranges.front(), from, size, false);
}

void Writes::check(const at::Tensor &tensor, const c10::FunctionSchema &schema, const std::string &parameter,
                   bool can_grow) {
  if (!tensor.defined() || tensor.is_meta()) return;
  if (tensor.layout() == at::kSparse) return check(tensor._values(), schema, parameter, can_grow);
  if (is_sparse(tensor.layout())) return check(tensor.values(), schema, parameter, can_grow);
  if (!is_strided(tensor) || !tensor.has_storage() || add(tensor, can_grow)) return;
  fail(XT_STATUS_frozen,
       schema.name() + " would write to `" + parameter +
           "`, whose memory is read-only: an Erlang binary shares it, or a sparse or quantized tensor "
           "depends on it; use ExTorch.Tensor.clone/1 first, or the operator without the underscore");
}

bool Writes::prepare(const c10::OperatorHandle &op, Stack &stack) {
  const auto &schema = op.schema();
  bool metadata_only = op.hasTag(at::Tag::inplace_view);
  bool writes = false;
  auto prepare_tensor = [&](const at::Tensor &tensor, const std::string &parameter, bool can_grow) {
    if (!metadata_only) check(tensor, schema, parameter, can_grow);
    if (!tensor.defined()) return tensor;
    if (is_sparse(tensor.layout()) && !tensor.is_meta()) return with_own_indices(tensor);
    return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
  };
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto &parameter = schema.arguments()[i];
    bool declared = parameter.alias_info() && parameter.alias_info()->isWrite();
    if (!declared && !writes_undeclared(schema, stack, parameter.name())) continue;
    writes = true;
    c10::IValue &slot = stack[i];
    if (slot.isTensor()) slot = prepare_tensor(slot.toTensor(), parameter.name(), parameter.is_out());
    else if (slot.isTensorList()) {
      auto copies = slot.toTensorList();
      for (size_t k = 0; k < copies.size(); k++)
        copies.set(k, prepare_tensor(copies.get(k), parameter.name(), parameter.is_out()));
    }
  }
  return writes;
}

} // namespace xt
