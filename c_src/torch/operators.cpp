/* Operators: finds the overload that accepts the arguments, calls it and converts its results. */
#include "torch/operators.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "core/base/suggest.h"
#include "torch/shim.hpp"

namespace xt {
namespace {

/* ---- Lookup by name ---- */

using Overloads = std::vector<c10::OperatorHandle>;

/* Sorted, so that ties between overloads are resolved the same way everywhere. The unnamed overload is first. */
void sort(Overloads &overloads) {
  std::sort(overloads.begin(), overloads.end(), [](const auto &a, const auto &b) {
    return a.operator_name().overload_name < b.operator_name().overload_name;
  });
}

/* All overloads of every operator of LibTorch, by "namespace::name". */
const std::unordered_map<std::string, Overloads> &operators() {
  static const auto *all = [] {
    auto *table = new std::unordered_map<std::string, Overloads>();
    for (const auto &name : c10::Dispatcher::singleton().getAllOpNames())
      if (auto found = c10::Dispatcher::singleton().findSchema(name)) (*table)[name.name].push_back(*found);
    for (auto &entry : *table) sort(entry.second);
    return table;
  }();
  return *all;
}

/* Returns the overloads of an operator that another library has registered since then; none if there is no such
 * operator. */
Overloads added_later(const std::string &full) {
  static auto *table = new std::unordered_map<std::string, Overloads>();
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = table->find(full);
  if (found != table->end()) return found->second;
  Overloads overloads;
  for (const auto &name : c10::Dispatcher::singleton().getAllOpNames())
    if (name.name == full)
      if (auto schema = c10::Dispatcher::singleton().findSchema(name)) overloads.push_back(*schema);
  sort(overloads);
  if (!overloads.empty()) table->emplace(full, overloads);
  return overloads;
}

/* The schemas of which arguments are checked before a call. */
const std::unordered_set<const c10::FunctionSchema *> &checked() {
  static const auto *all = [] {
    auto *set = new std::unordered_set<const c10::FunctionSchema *>();
    for (const auto &entry : operators())
      for (const auto &overload : entry.second)
        if (needs_checks(overload.schema())) set->insert(&overload.schema());
    return set;
  }();
  return *all;
}

[[noreturn]] void fail_unknown(const std::string &requested, const std::string &full) {
  std::vector<std::pair<size_t, std::string>> similar;
  for (const auto &entry : operators()) {
    if (entry.first.rfind("aten::", 0) != 0 || entry.first[6] == '_') continue;
    size_t distance =
        xt_suggest_distance(entry.first.c_str() + 6, full.c_str() + (full.rfind("aten::", 0) == 0 ? 6 : 0));
    if (distance <= 1 + requested.size() / 4) similar.emplace_back(distance, entry.first.substr(6));
  }
  std::sort(similar.begin(), similar.end());
  std::string text = "unknown operator \"" + requested + "\"";
  for (size_t i = 0; i < similar.size() && i < 3; i++)
    text += (i ? ", " : "; did you mean ") + ("\"" + similar[i].second + "\"");
  fail(XT_STATUS_not_found, text + (similar.empty() ? "" : "?"));
}

std::string full_name(const std::string &requested) {
  if (requested.find("::") != std::string::npos) return requested;
  if (requested[0] == '_')
    fail(XT_STATUS_forbidden,
         "operators whose name begins with _ are internal to LibTorch; to call one anyway, use its "
         "full name, \"aten::" +
             requested + "\"");
  return "aten::" + requested;
}

/* Returns the overloads of "add", "aten::add" or "aten::add.Tensor"; only the named one in the last case. */
Overloads lookup(const std::string &requested) {
  std::string full = full_name(requested), overload;
  auto dot = full.find('.', full.find("::"));
  bool has_overload = dot != std::string::npos;
  if (has_overload) overload = full.substr(dot + 1), full.resize(dot);
  check_allowed(full);
  auto entry = operators().find(full);
  Overloads later = entry == operators().end() ? added_later(full) : Overloads();
  const Overloads &all = entry == operators().end() ? later : entry->second;
  if (all.empty()) fail_unknown(requested, full);
  if (!has_overload) return all;
  std::string names;
  for (const auto &candidate : all) {
    const auto &name = candidate.operator_name().overload_name;
    if (name == overload) return {candidate};
    names += (names.empty() ? "" : ", ") + full + (name.empty() ? "" : "." + name);
  }
  fail(XT_STATUS_not_found, full + " has no overload \"" + overload + "\"; its overloads are " + names);
}

/* ---- Overload resolution ---- */

/* The result of matching a call against one overload. */
struct Match {
  Stack stack;
  int cost = 0;
  size_t matched = 0;  /* arguments that were converted before the problem was found */
  std::string problem; /* empty if the overload accepts the call */
};

/* Finds the argument for parameter i, by position or by name. Sets `value` to null if there is none. */
bool find_argument(const xt_op_call &call, const c10::Argument &parameter, size_t i, std::vector<bool> &used,
                   const xt_value *&value, std::string &problem) {
  value = i < call.arg_count ? &call.args[i] : nullptr;
  for (size_t k = 0; k < call.kwarg_count; k++) {
    if (parameter.name() != call.kwargs[k].name) continue;
    if (value) {
      problem = "argument `" + parameter.name() + "` is given twice";
      return false;
    }
    value = &call.kwargs[k].value;
    used[k] = true;
  }
  return true;
}

/* Whether a list has the length of the parameter's type, int[2]. Operators rely on it. An empty list is valid if it is
 * the default, and int[1] stands for a list of any length. */
bool has_length(const c10::IValue &list, const c10::Argument &parameter) {
  if (!list.isList() || !parameter.N() || *parameter.N() < 2) return true;
  size_t length = list.toListRef().size();
  const auto &value = parameter.default_value();
  if (length == 0 && value && value->isList() && value->toListRef().empty()) return true;
  return length == static_cast<size_t>(*parameter.N());
}

/* Appends the argument for parameter i, or its default value, to the stack. */
bool add_argument(const xt_value *value, const c10::Argument &parameter, size_t i, Match &match) {
  c10::IValue slot;
  if (!value) {
    if (!parameter.default_value()) {
      match.problem = "argument `" + parameter.name() + "` (" + parameter.real_type()->str() + ") is missing";
      return false;
    }
    slot = *parameter.default_value();
    match.cost += 1;
  } else {
    int64_t repeat = parameter.N() ? *parameter.N() : 0;
    if (!convert_argument(parameter.real_type(), *value, repeat, i > 0, slot, match.cost)) {
      match.problem = "argument `" + parameter.name() + "` expects " + parameter.real_type()->str() + ", got " +
                      describe_value(*value);
      return false;
    }
    if (!has_length(slot, parameter)) {
      match.problem = "argument `" + parameter.name() + "` expects a list of " + std::to_string(*parameter.N()) +
                      ", got " + describe_value(*value);
      return false;
    }
    match.matched++;
  }
  match.stack.push_back(std::move(slot));
  return true;
}

Match match_overload(const c10::FunctionSchema &schema, const xt_op_call &call) {
  Match match;
  const auto &parameters = schema.arguments();
  std::vector<bool> used(call.kwarg_count, false);
  size_t positional = 0;
  for (const auto &parameter : parameters) positional += !parameter.kwarg_only();
  if (call.arg_count > positional) {
    match.problem =
        "takes at most " + std::to_string(positional) + " positional arguments, got " + std::to_string(call.arg_count);
    return match;
  }
  for (size_t i = 0; i < parameters.size(); i++) {
    const xt_value *value;
    if (!find_argument(call, parameters[i], i, used, value, match.problem) ||
        !add_argument(value, parameters[i], i, match))
      return match;
  }
  for (size_t k = 0; k < call.kwarg_count && match.problem.empty(); k++)
    if (!used[k]) match.problem = std::string("has no argument `") + call.kwargs[k].name + "`";
  return match;
}

[[noreturn]] void fail_no_match(const Overloads &overloads, const std::vector<Match> &matches, size_t closest) {
  std::string text = c10::toString(overloads[closest].operator_name()) + ": " + matches[closest].problem +
                     ". The schema is " + c10::toString(overloads[closest].schema());
  if (overloads.size() > 1) text += "; other overloads:";
  for (size_t i = 0, listed = 0; i < overloads.size() && listed < 6; i++)
    if (i != closest) text += (listed++ ? ", " : " ") + c10::toString(overloads[i].operator_name());
  fail(XT_STATUS_bad_argument, text);
}

/* Returns the overload that accepts the arguments at the lowest cost, and the converted arguments. */
std::pair<c10::OperatorHandle, Stack> resolve(const xt_op_call &call) {
  Overloads overloads = lookup(call.name);
  size_t best = overloads.size(), closest = 0;
  std::vector<Match> matches;
  for (size_t i = 0; i < overloads.size(); i++) {
    matches.push_back(match_overload(overloads[i].schema(), call));
    if (matches[i].problem.empty() && (best == overloads.size() || matches[i].cost < matches[best].cost)) best = i;
    if (matches[i].matched > matches[closest].matched) closest = i;
  }
  if (best == overloads.size()) fail_no_match(overloads, matches, closest);
  return {overloads[best], std::move(matches[best].stack)};
}

/* ---- Results ---- */

/* Converts results to values in the arena. Owns the tensors among them until release(). */
struct Results {
  xt_arena *arena;
  std::vector<xt_tensor *> owned;

  ~Results() {
    for (auto *tensor : owned) destroy(&tensor->reapable);
  }

  void release() { owned.clear(); }

  template <class T> T *alloc(size_t count) {
    auto *memory = static_cast<T *>(host->arena_alloc(arena, count, sizeof(T)));
    if (!memory) throw std::bad_alloc();
    return memory;
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
      owned.push_back(value.tensor);
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
      fail(XT_STATUS_unsupported,
           "the operator returns a value of type " + result.tagKind() + ", which has no Elixir equivalent");
    }
    return value;
  }
};

} // namespace

void load_operators() { checked(); }

xt_status op(const xt_op_call *call, xt_arena *arena, xt_value **values, size_t *count, xt_error *error) {
  bool writes = false;
  xt_status status = guard(error, [&] {
    auto resolved = resolve(*call);
    const auto &handle = resolved.first;
    const auto &schema = handle.schema();
    auto &stack = resolved.second;
    if (checked().count(&schema)) check_arguments(schema, stack);
    {
      Writes registered;
      writes = registered.prepare(handle, stack);
      /* An operator with several out= arguments returns references to them. LibTorch drops the arguments before it
       * reads those references, and relies on the caller to keep the tensors alive. */
      Stack kept(writes ? stack : Stack());
      handle.callBoxed(&stack);
    }
    Results results{arena, {}};
    *count = stack.size();
    *values = results.alloc<xt_value>(stack.size());
    for (size_t i = 0; i < stack.size(); i++) {
      const c10::Type *type = i < schema.returns().size() ? schema.returns()[i].real_type().get() : nullptr;
      (*values)[i] = results.convert(stack[i], type);
    }
    results.release();
  });
  if (writes) error->collect = false; /* it may have written already, so it must not be called again */
  return status;
}

} // namespace xt
