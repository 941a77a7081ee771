/* Converts operator arguments (xt_value) to the types of a schema. */
#include <algorithm>
#include <cmath>

#include "core/base/layout.h"
#include "core/base/printable.h"
#include "torch/operators.hpp"
#include "torch/shim.hpp"

namespace xt {
namespace {

struct NamedNumber {
  const char *text;
  int64_t number;
};
#define XT_NAMED_LAYOUT(name, number, text) {text, number},
/* Also an older name, and the layout that no file has. */
const NamedNumber layouts[] = {XT_LAYOUTS(XT_NAMED_LAYOUT){"sparse", XT_LAYOUT_COO}, {"mkldnn", 3}};
#undef XT_NAMED_LAYOUT
const NamedNumber memory_formats[] = {
    {"contiguous_format", 0}, {"preserve_format", 1}, {"channels_last", 2}, {"channels_last_3d", 3}};
const NamedNumber qschemes[] = {
    {"per_tensor_affine", 0}, {"per_channel_affine", 1}, {"per_tensor_symmetric", 2}, {"per_channel_symmetric", 3}};

template <size_t N> bool find_name(const NamedNumber (&names)[N], const char *text, c10::IValue &out) {
  for (const NamedNumber &name : names)
    if (!strcmp(name.text, text)) {
      out = name.number;
      return true;
    }
  return false;
}

/* :infinity, :neg_infinity and :nan; Elixir floats cannot represent these values. */
bool special_float(const xt_value &value, double &out) {
  if (value.kind != XT_VALUE_NAME || value.name.indexed) return false;
  if (!strcmp(value.name.text, "infinity")) out = INFINITY;
  else if (!strcmp(value.name.text, "neg_infinity")) out = -INFINITY;
  else if (!strcmp(value.name.text, "nan")) out = NAN;
  else return false;
  return true;
}

bool to_scalar(const xt_value &value, at::Scalar &out) {
  double special;
  switch (value.kind) {
  case XT_VALUE_BOOL: out = value.boolean; return true;
  case XT_VALUE_INT: out = value.integer; return true;
  case XT_VALUE_FLOAT: out = value.number; return true;
  case XT_VALUE_COMPLEX: out = c10::complex<double>(value.complex.re, value.complex.im); return true;
  default:
    if (!special_float(value, special)) return false;
    out = special;
    return true;
  }
}

bool to_dtype(const xt_value &value, c10::IValue &out) {
  if (value.kind != XT_VALUE_NAME) return false;
  xt_dtype dtype =
      value.name.indexed ? xt_dtype_from_nx(value.name.text, value.name.index) : xt_dtype_from_name(value.name.text);
  if (dtype == XT_DTYPE_COUNT) return false;
  out = static_cast<int64_t>(scalar_type(dtype));
  return true;
}

bool to_device(const xt_value &value, c10::IValue &out) {
  std::string text;
  int64_t index = -1;
  if (value.kind == XT_VALUE_NAME) {
    text = value.name.text;
    if (value.name.indexed) index = value.name.index;
  } else if (value.kind == XT_VALUE_TEXT) {
    text = value.text.data;
    auto colon = text.find(':');
    if (colon != std::string::npos && colon + 1 < text.size() &&
        text.find_first_not_of("0123456789", colon + 1) == std::string::npos && text.size() - colon < 6) {
      index = std::stoi(text.substr(colon + 1));
      text.resize(colon);
    }
  }
  if (index < -1 || index > 127) return false;
  xt_device_type type = device_type_from_name(text);
  if (type == XT_DEVICE_OTHER) return false;
  out = to_torch_device({type, static_cast<int>(index)});
  return true;
}

/* Costs of the conversions of one argument. The overload with the lowest total cost is called. */
enum Cost {
  WIDENED = 100,  /* integer to float, atom to string */
  REPEATED = 200, /* one number to a list of a fixed length */
  WRAPPED = 1000  /* number to tensor */
};

/* LibTorch takes smaller sizes for addresses of symbolic ones, and reads there (c10::SymInt). No size, stride or
 * dimension is as small. */
bool is_symbolic(const c10::IValue &item) { return item.isInt() && item.toInt() < -(int64_t(1) << 62); }

bool convert_list(const c10::TypePtr &element, const xt_value &value, int64_t repeat, c10::IValue &out, int &cost) {
  /* Sizes, dtypes, layouts and memory formats are passed as integers. */
  auto kind = element->kind();
  bool as_int = kind == c10::TypeKind::SymIntType || kind == c10::TypeKind::ScalarTypeType ||
                kind == c10::TypeKind::LayoutType || kind == c10::TypeKind::MemoryFormatType;
  c10::impl::GenericList list(as_int ? c10::TypePtr(c10::IntType::get()) : element);
  if (value.kind == XT_VALUE_LIST) {
    list.reserve(value.list.count);
    for (size_t i = 0; i < value.list.count; i++) {
      c10::IValue item;
      if (!convert_argument(element, value.list.items[i], 0, false, item, cost) || is_symbolic(item)) return false;
      list.push_back(std::move(item));
    }
    /* Like torch, accepts a list of one number for a parameter of type int[2]. */
    while (repeat > 1 && value.list.count == 1 && list.size() < static_cast<size_t>(repeat))
      list.push_back(list.get(0));
  } else {
    /* Like torch, accepts one number for a parameter of type int[2]. */
    c10::IValue item;
    if (repeat <= 0 || value.kind == XT_VALUE_TENSOR || !convert_argument(element, value, 0, false, item, cost) ||
        is_symbolic(item))
      return false;
    for (int64_t i = 0; i < repeat; i++) list.push_back(item);
    cost += REPEATED;
  }
  out = std::move(list);
  return true;
}

} // namespace

bool convert_argument(const c10::TypePtr &type, const xt_value &value, int64_t repeat, bool may_wrap, c10::IValue &out,
                      int &cost) {
  at::Scalar scalar;
  switch (type->kind()) {
  case c10::TypeKind::OptionalType:
    if (value.kind == XT_VALUE_NIL) {
      out = c10::IValue();
      return true;
    }
    return convert_argument(type->containedTypes()[0], value, repeat, may_wrap, out, cost);
  case c10::TypeKind::TensorType:
    if (value.kind == XT_VALUE_TENSOR) {
      out = unwrap(value.tensor);
      return true;
    }
    if (!may_wrap || !to_scalar(value, scalar)) return false;
    out = at::scalar_tensor(scalar, at::TensorOptions(scalar.isIntegral(false) ? at::kLong
                                                      : scalar.isBoolean()     ? at::kBool
                                                      : scalar.isComplex()     ? at::kComplexDouble
                                                                               : at::kDouble));
    out.toTensor().unsafeGetTensorImpl()->set_wrapped_number(true);
    cost += WRAPPED;
    return true;
  case c10::TypeKind::NumberType:
    if (!to_scalar(value, scalar)) return false;
    out = scalar;
    return true;
  case c10::TypeKind::IntType:
  case c10::TypeKind::SymIntType:
    if (value.kind != XT_VALUE_INT) return false;
    out = value.integer;
    return type->kind() == c10::TypeKind::IntType || !is_symbolic(out);
  case c10::TypeKind::FloatType: {
    double number;
    if (value.kind == XT_VALUE_FLOAT) number = value.number;
    else if (value.kind == XT_VALUE_INT) number = static_cast<double>(value.integer), cost += WIDENED;
    else if (!special_float(value, number)) return false;
    out = number;
    return true;
  }
  case c10::TypeKind::ComplexType:
    if (!to_scalar(value, scalar)) return false;
    out = scalar.toComplexDouble();
    return true;
  case c10::TypeKind::BoolType:
    if (value.kind != XT_VALUE_BOOL) return false;
    out = value.boolean;
    return true;
  case c10::TypeKind::StringType:
    if (value.kind == XT_VALUE_NAME && !value.name.indexed) out = std::string(value.name.text), cost += WIDENED;
    else if (value.kind == XT_VALUE_TEXT) out = std::string(value.text.data, value.text.size);
    else return false;
    return true;
  case c10::TypeKind::DeviceObjType: return to_device(value, out);
  case c10::TypeKind::ScalarTypeType: return to_dtype(value, out);
  case c10::TypeKind::LayoutType: return value.kind == XT_VALUE_NAME && find_name(layouts, value.name.text, out);
  case c10::TypeKind::MemoryFormatType:
    return value.kind == XT_VALUE_NAME && find_name(memory_formats, value.name.text, out);
  case c10::TypeKind::QSchemeType: return value.kind == XT_VALUE_NAME && find_name(qschemes, value.name.text, out);
  case c10::TypeKind::ListType: return convert_list(type->containedTypes()[0], value, repeat, out, cost);
  default: return false;
  }
}

std::string describe_value(const xt_value &value) {
  switch (value.kind) {
  case XT_VALUE_NIL: return "nil";
  case XT_VALUE_BOOL: return value.boolean ? "true" : "false";
  case XT_VALUE_INT: return "the integer " + std::to_string(value.integer);
  case XT_VALUE_FLOAT: return "the float " + std::to_string(value.number);
  case XT_VALUE_COMPLEX: return "a complex number";
  case XT_VALUE_TEXT:
    return "the string \"" +
           std::string(xt_printable_text(value.text.data, std::min<size_t>(value.text.size, 40)).text) + "\"";
  case XT_VALUE_NAME:
    return value.name.indexed ? "{:" + std::string(value.name.text) + ", " + std::to_string(value.name.index) + "}"
                              : ":" + std::string(value.name.text);
  case XT_VALUE_TENSOR: return "a tensor";
  case XT_VALUE_LIST: return "a list of " + std::to_string(value.list.count);
  }
  return "an unknown value";
}

} // namespace xt
