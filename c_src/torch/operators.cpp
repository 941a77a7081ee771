/* Operators: finding the overload that takes the arguments, the call, and its results. */
#include "torch/operators.hpp"

#include <algorithm>
#include <unordered_map>

#include "core/base/suggest.h"
#include "torch/shim.hpp"

namespace xt {
namespace {

/* ---- Overload resolution ---- */

Match match(const c10::FunctionSchema &schema, const xt_op_call &call) {
  Match found;
  const auto &parameters = schema.arguments();
  std::vector<bool> used(call.kwarg_count, false);
  size_t positional = 0;
  for (const auto &parameter : parameters) positional += !parameter.kwarg_only();
  if (call.arg_count > positional) {
    found.problem =
        "takes at most " + std::to_string(positional) + " positional arguments, got " + std::to_string(call.arg_count);
    return found;
  }
  for (size_t i = 0; i < parameters.size(); i++) {
    const auto &parameter = parameters[i];
    const xt_value *value = i < call.arg_count ? &call.args[i] : nullptr;
    for (size_t k = 0; k < call.kwarg_count; k++) {
      if (parameter.name() != call.kwargs[k].name) continue;
      if (value) {
        found.problem = "argument `" + parameter.name() + "` is given twice";
        return found;
      }
      value = &call.kwargs[k].value;
      used[k] = true;
    }
    c10::IValue slot;
    if (!value) {
      if (!parameter.default_value()) {
        found.problem = "argument `" + parameter.name() + "` (" + parameter.real_type()->str() + ") is missing";
        return found;
      }
      slot = *parameter.default_value();
      found.cost += 1;
    } else if (!coerce(parameter.real_type(), *value, parameter.N() ? *parameter.N() : 0, i > 0, slot, found.cost)) {
      found.problem =
          "argument `" + parameter.name() + "` expects " + parameter.real_type()->str() + ", got " + words_for(*value);
      return found;
    } else {
      found.fitted++;
    }
    found.stack.push_back(std::move(slot));
  }
  for (size_t k = 0; k < call.kwarg_count; k++)
    if (!used[k]) {
      found.problem = std::string("has no argument `") + call.kwargs[k].name + "`";
      return found;
    }
  return found;
}

using Overloads = std::vector<c10::OperatorHandle>;

const std::unordered_map<std::string, Overloads> &operators() {
  static const auto *all = [] {
    auto *table = new std::unordered_map<std::string, Overloads>();
    for (const auto &name : c10::Dispatcher::singleton().getAllOpNames())
      if (auto found = c10::Dispatcher::singleton().findSchema(name)) (*table)[name.name].push_back(*found);
    /* the plain overload first, the rest by name: ties are then decided the same way everywhere */
    for (auto &entry : *table)
      std::sort(entry.second.begin(), entry.second.end(), [](const auto &a, const auto &b) {
        return a.operator_name().overload_name < b.operator_name().overload_name;
      });
    return table;
  }();
  return *all;
}

[[noreturn]] void unknown_operator(const std::string &asked, const std::string &full) {
  std::vector<std::pair<size_t, std::string>> near;
  for (const auto &entry : operators()) {
    if (entry.first.rfind("aten::", 0) != 0 || entry.first[6] == '_') continue;
    size_t distance =
        xt_suggest_distance(entry.first.c_str() + 6, full.c_str() + (full.rfind("aten::", 0) == 0 ? 6 : 0));
    if (distance <= 1 + asked.size() / 4) near.emplace_back(distance, entry.first.substr(6));
  }
  std::sort(near.begin(), near.end());
  std::string text = "there is no operator \"" + asked + "\"";
  for (size_t i = 0; i < near.size() && i < 3; i++)
    text += (i ? ", " : "; did you mean ") + ("\"" + near[i].second + "\"");
  refuse(XT_STATUS_not_found, text + (near.empty() ? "" : "?"));
}

/* Operators that read files, move memory from under others or belong to autograd. */
const char *const denied[] = {"aten::from_file",   "aten::set_",      "aten::set_data",     "aten::requires_grad_",
                              "aten::retain_grad", "aten::_backward", "aten::record_stream"};

/* "add" · "aten::add" · "aten::add.Tensor" */
Overloads lookup(const std::string &asked) {
  std::string full = asked;
  if (full.find("::") == std::string::npos) {
    if (full[0] == '_')
      refuse(XT_STATUS_forbidden, "operators that begin with _ are LibTorch's own business; if you know what it does, "
                                  "call it by its full name, \"aten::" +
                                      asked + "\"");
    full = "aten::" + full;
  }
  std::string overload;
  auto dot = full.find('.', full.find("::"));
  bool one = dot != std::string::npos;
  if (one) overload = full.substr(dot + 1), full.resize(dot);
  for (const char *name : denied)
    if (full == name)
      refuse(XT_STATUS_forbidden, full + " is not offered: it would move or replace memory that others may see, or "
                                         "reach outside LibTorch; make a new tensor instead");
  auto entry = operators().find(full);
  if (entry == operators().end()) unknown_operator(asked, full);
  if (!one) return entry->second;
  std::string names;
  for (const auto &candidate : entry->second) {
    if (candidate.operator_name().overload_name == overload) return {candidate};
    names += (names.empty() ? "" : ", ") + full +
             (candidate.operator_name().overload_name.empty() ? "" : "." + candidate.operator_name().overload_name);
  }
  refuse(XT_STATUS_not_found, full + " has no overload \"" + overload + "\"; it has " + names);
}

std::pair<c10::OperatorHandle, Match> resolve(const xt_op_call &call) {
  Overloads overloads = lookup(call.name);
  size_t best = overloads.size(), nearest = 0;
  std::vector<Match> matches;
  for (size_t i = 0; i < overloads.size(); i++) {
    matches.push_back(match(overloads[i].schema(), call));
    if (matches[i].problem.empty() && (best == overloads.size() || matches[i].cost < matches[best].cost)) best = i;
    if (matches[i].fitted > matches[nearest].fitted) nearest = i;
  }
  if (best < overloads.size()) return {overloads[best], std::move(matches[best])};
  std::string text = c10::toString(overloads[nearest].operator_name()) + ": " + matches[nearest].problem +
                     ". The schema is " + c10::toString(overloads[nearest].schema());
  if (overloads.size() > 1) {
    text += "; other overloads:";
    for (size_t i = 0, shown = 0; i < overloads.size() && shown < 6; i++)
      if (i != nearest) text += (shown++ ? ", " : " ") + c10::toString(overloads[i].operator_name());
  }
  refuse(XT_STATUS_bad_argument, text);
}

/* ---- Results ---- */

struct Results {
  xt_arena *arena;
  std::vector<xt_tensor *> made;

  ~Results() { /* still ours: something failed on the way */
    for (auto *tensor : made) destroy(&tensor->reapable);
  }

  template <class T> T *alloc(size_t count) {
    auto *piece = static_cast<T *>(host->arena_alloc(arena, count, sizeof(T)));
    if (!piece) throw std::bad_alloc();
    return piece;
  }

  xt_value name(const char *text) {
    xt_value value = {};
    value.kind = XT_VALUE_NAME;
    value.name.text = text;
    return value;
  }

  xt_value list(const std::vector<c10::IValue> &items) {
    xt_value value = {};
    value.kind = XT_VALUE_LIST;
    value.list.count = items.size();
    value.list.items = alloc<xt_value>(items.size());
    for (size_t i = 0; i < items.size(); i++) value.list.items[i] = convert(items[i], nullptr);
    return value;
  }

  xt_value convert(const c10::IValue &result, const c10::Type *type) {
    xt_value value = {};
    if (result.isTensor() && result.toTensor().defined()) {
      value.kind = XT_VALUE_TENSOR;
      value.tensor = wrap(result.toTensor());
      made.push_back(value.tensor);
    } else if (result.isInt() && type && type->kind() == c10::TypeKind::ScalarTypeType) {
      xt_dtype dtype = xt_dtype_from_torch(static_cast<int>(result.toInt()));
      if (dtype != XT_DTYPE_COUNT) value = name(xt_dtype_get(dtype)->name);
    } else if (result.isInt()) {
      value.kind = XT_VALUE_INT;
      value.integer = result.toInt();
    } else if (result.isDouble()) {
      value.kind = XT_VALUE_FLOAT;
      value.number = result.toDouble();
    } else if (result.isBool()) {
      value.kind = XT_VALUE_BOOL;
      value.boolean = result.toBool();
    } else if (result.isComplexDouble()) {
      auto number = result.toComplexDouble();
      value.kind = XT_VALUE_COMPLEX;
      value.complex.re = number.real();
      value.complex.im = number.imag();
    } else if (result.isString() || result.isDevice()) {
      std::string text = result.isString() ? result.toStringRef() : result.toDevice().str();
      char *copy = alloc<char>(text.size() + 1);
      memcpy(copy, text.data(), text.size());
      value.kind = XT_VALUE_TEXT;
      value.text.data = copy;
      value.text.size = text.size();
    } else if (result.isList()) {
      value = list(result.toListRef().vec());
    } else if (result.isTuple()) {
      auto tuple = result.toTuple();
      value = list(std::vector<c10::IValue>(tuple->elements().begin(), tuple->elements().end()));
    } else if (!result.isNone() && !result.isTensor()) {
      refuse(XT_STATUS_unsupported, "the operator returns a " + result.tagKind() + ", which has no Elixir twin");
    }
    return value;
  }
};

} // namespace

void list_operators() { operators(); }

xt_status op(const xt_op_call *call, xt_arena *arena, xt_value **values, size_t *count, xt_error *error) {
  bool wrote = false;
  xt_status status = guard(error, [&] {
    auto resolved = resolve(*call);
    const auto &schema = resolved.first.schema();
    auto &stack = resolved.second.stack;
    wrote = prepare_writes(resolved.first, resolved.second);
    resolved.first.callBoxed(&stack);
    Results results{arena, {}};
    *count = stack.size();
    *values = results.alloc<xt_value>(stack.size());
    for (size_t i = 0; i < stack.size(); i++) {
      const c10::Type *type = i < schema.returns().size() ? schema.returns()[i].real_type().get() : nullptr;
      (*values)[i] = results.convert(stack[i], type);
    }
    results.made.clear();
  });
  if (wrote) error->collect = false; /* it may have written half of its work: never do that twice */
  return status;
}

} // namespace xt
