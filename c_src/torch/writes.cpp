/* What an operator may write. */
#include "torch/operators.hpp"
#include "torch/shim.hpp"

namespace xt {
namespace {

/* Schemas do not tell all: these write running statistics or noise in training without saying (a!). */
bool writes_unsaid(const c10::FunctionSchema &schema, const Match &found, const std::string &parameter) {
  if (parameter != "running_mean" && parameter != "running_var" && parameter != "noise") return false;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto &name = schema.arguments()[i].name();
    if ((name == "training" || name == "train" || name == "use_input_stats") && found.stack[i].isBool())
      return found.stack[i].toBool();
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
    refuse(XT_STATUS_frozen, schema.name() + " would write to `" + parameter +
                                 "`, whose memory an Erlang binary sees; use ExTorch.Tensor.clone/1 first, or the "
                                 "operator without the underscore");
}

} // namespace

/* Written arguments are checked and replaced by shallow copies, so that an operator which changes sizes or strides in
 * place (t_, squeeze_, resize_) changes the copy it returns and not a tensor that others hold. */
bool prepare_writes(const c10::OperatorHandle &op, Match &found) {
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
    bool said = parameter.alias_info() && parameter.alias_info()->isWrite();
    if (!said && !writes_unsaid(schema, found, parameter.name())) continue;
    writes = true;
    c10::IValue &slot = found.stack[i];
    if (slot.isTensor()) slot = prepare(slot.toTensor(), parameter.name());
    else if (slot.isTensorList()) {
      auto copies = slot.toTensorList();
      for (size_t k = 0; k < copies.size(); k++) copies.set(k, prepare(copies.get(k), parameter.name()));
    }
  }
  return writes;
}

} // namespace xt
