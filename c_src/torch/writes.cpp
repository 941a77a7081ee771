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

void check_writable(const at::Tensor &tensor, const c10::FunctionSchema &schema, const std::string &parameter) {
  if (!tensor.defined() || tensor.is_meta()) return;
  if (tensor.layout() == at::kSparse) return check_writable(tensor._values(), schema, parameter);
  if (tensor.layout() == at::kSparseCsr || tensor.layout() == at::kSparseCsc || tensor.layout() == at::kSparseBsr ||
      tensor.layout() == at::kSparseBsc)
    return check_writable(tensor.values(), schema, parameter);
  if (!is_strided(tensor) || !tensor.has_storage()) return;
  if (host->is_frozen(tensor.data_ptr(), span_of(tensor)))
    fail(XT_STATUS_frozen, schema.name() + " would write to `" + parameter +
                               "`, whose memory is shared with an Erlang binary; use ExTorch.Tensor.clone/1 first, "
                               "or the operator without the underscore");
}

} // namespace

bool prepare_writes(const c10::OperatorHandle &op, Stack &stack) {
  const auto &schema = op.schema();
  bool metadata_only = op.hasTag(at::Tag::inplace_view);
  bool writes = false;
  auto prepare = [&](const at::Tensor &tensor, const std::string &parameter) {
    if (!metadata_only) check_writable(tensor, schema, parameter);
    if (!tensor.defined()) return tensor;
    return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
  };
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto &parameter = schema.arguments()[i];
    bool declared = parameter.alias_info() && parameter.alias_info()->isWrite();
    if (!declared && !writes_undeclared(schema, stack, parameter.name())) continue;
    writes = true;
    c10::IValue &slot = stack[i];
    if (slot.isTensor()) slot = prepare(slot.toTensor(), parameter.name());
    else if (slot.isTensorList()) {
      auto copies = slot.toTensorList();
      for (size_t k = 0; k < copies.size(); k++) copies.set(k, prepare(copies.get(k), parameter.name()));
    }
  }
  return writes;
}

} // namespace xt
