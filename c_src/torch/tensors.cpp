/* LibTorch behind xt_torch.h.
 *
 * Parts, in order: errors · memory · tensors · operators (values to a schema's types, overload resolution, what may be
 * written, results) · the table. */
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Logging.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <vector>

#include "core/base/suggest.h"
#include "torch/shim.hpp"

namespace xt {

const xt_torch_host *host;

/* ---- Errors ---- */

namespace {

enum { REFUSED_NOT, REFUSED_BUDGET, REFUSED_MACHINE }; /* xt_refused */

/* LibTorch's messages run on for pages (lists of backends, hints about C++); the first paragraph says what happened. */
std::string first_paragraph(std::string text) {
  for (const char *end : {"\nException raised from", "\n\n", ". '", "  This could be because"}) {
    auto at = text.find(end);
    if (at != std::string::npos && at > 0) text.resize(at);
  }
  return text;
}

} // namespace

xt_status torch_failed(xt_error *error, const char *what) {
  switch (host->refused()) {
  case REFUSED_BUDGET:
    xt_error_set(error, XT_STATUS_limit,
                 "the budget of native memory is used up; release tensors or raise `config :extorch, budget:`");
    error->collect = true;
    return error->status;
  case REFUSED_MACHINE:
    return xt_error_set(error, XT_STATUS_no_memory, "the system has no memory left for this tensor");
  }
  if (strstr(what, "storage that is not resizable"))
    return xt_error_set(error, XT_STATUS_forbidden,
                        "this would move memory that others may see; make a new tensor of the wanted shape instead");
  return xt_error_set(error, XT_STATUS_torch, "%s", first_paragraph(what).c_str());
}

namespace {

/* ---- Memory: all CPU allocations are counted and within the budget ---- */

struct CountedAllocator final : at::Allocator {
  at::DataPtr allocate(size_t size) XT_ALLOCATE_CONST override {
    void *data = size ? host->alloc(size) : nullptr;
    if (size && !data) throw std::bad_alloc();
    return {data, data, host->free, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return host->free; }
#if XT_TORCH_VERSION >= 200
  void copy_data(void *to, const void *from, std::size_t size) const override { default_copy_data(to, from, size); }
#endif
};

/* ---- Tensors ---- */

struct Handle : xt_tensor {
  at::Tensor tensor;
};

void destroy(xt_reapable *item) {
  /* A deleter that throws ends here as well: there is nobody to tell. */
  try {
    delete static_cast<Handle *>(reinterpret_cast<xt_tensor *>(item));
  } catch (...) {
  }
  host->tensor_count(-1);
}

} // namespace

const at::Tensor &unwrap(const xt_tensor *tensor) { return static_cast<const Handle *>(tensor)->tensor; }

namespace {

bool has_dtype(xt_dtype dtype) {
  int number = xt_dtype_get(dtype)->torch;
  return number < static_cast<int>(at::ScalarType::Undefined);
}

at::ScalarType scalar_type(xt_dtype dtype) {
  if (!has_dtype(dtype))
    refuse(XT_STATUS_unsupported, std::string("dtype ") + xt_dtype_get(dtype)->name +
                                      " is newer than the linked LibTorch (" TORCH_VERSION_TEXT ")");
  return static_cast<at::ScalarType>(xt_dtype_get(dtype)->torch);
}

int cuda_count() {
  try {
    return at::hasCUDA() ? c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount() : 0;
  } catch (...) {
    return 0;
  }
}

bool has_mps() { return at::hasMPS(); }

at::Device device_of(xt_device device) {
  switch (device.type) {
  case XT_DEVICE_CPU: return at::Device(at::kCPU);
  case XT_DEVICE_META: return at::Device(at::kMeta);
  case XT_DEVICE_MPS:
    if (!has_mps()) refuse(XT_STATUS_unsupported, "device mps is not available: this LibTorch has no Metal support");
    return at::Device(at::kMPS);
  case XT_DEVICE_CUDA: {
    int count = cuda_count();
    if (!count)
      refuse(XT_STATUS_unsupported, at::hasCUDA()
                                        ? "device cuda is not available: no CUDA device was found"
                                        : "device cuda is not available: the linked LibTorch (" TORCH_VERSION_TEXT
                                          ") is built without CUDA; use device: :cpu");
    if (device.index >= count)
      refuse(XT_STATUS_unsupported, "device cuda:" + std::to_string(device.index) + " is not available: there are " +
                                        std::to_string(count) + " CUDA devices");
    return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device.index < 0 ? 0 : device.index));
  }
  default: refuse(XT_STATUS_unsupported, "this kind of device is not supported");
  }
}

xt_device device_from(const at::Device &device) {
  int index = device.has_index() ? device.index() : -1;
  switch (device.type()) {
  case at::kCPU: return {XT_DEVICE_CPU, -1};
  case at::kCUDA: return {XT_DEVICE_CUDA, index < 0 ? 0 : index};
  case at::kMPS: return {XT_DEVICE_MPS, -1};
  case at::kMeta: return {XT_DEVICE_META, -1};
  default: return {XT_DEVICE_OTHER, index};
  }
}

bool is_strided(const at::Tensor &tensor) { return tensor.layout() == at::kStrided && !tensor.is_nested(); }

/* Bytes from the first to the end of the last element of a strided tensor. */
size_t span_of(const at::Tensor &tensor) {
  if (tensor.numel() == 0) return 0;
  size_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); d++) last += static_cast<size_t>((tensor.size(d) - 1) * tensor.stride(d));
  return (last + 1) * tensor.element_size();
}

xt_tensor_info describe(const at::Tensor &tensor) {
  xt_tensor_info info = {};
  if (tensor.is_nested()) refuse(XT_STATUS_unsupported, "a nested tensor has no single shape; use its values");
  if (tensor.dim() > XT_MAX_DIMS) refuse(XT_STATUS_unsupported, "a tensor of more than 64 dimensions");
  info.dtype = xt_dtype_from_torch(static_cast<int>(tensor.scalar_type()));
  if (info.dtype == XT_DTYPE_COUNT)
    refuse(XT_STATUS_unsupported,
           std::string("dtype ") + c10::toString(tensor.scalar_type()) + " is not known to ExTorch");
  bool strided = is_strided(tensor);
  info.device = device_from(tensor.device());
  info.layout = static_cast<uint8_t>(tensor.layout());
  if (tensor.is_quantized()) {
    auto scheme = tensor.qscheme();
    info.scheme = scheme == at::kPerTensorAffine ? 1 : scheme == at::kPerChannelAffine ? 2 : 3;
  }
  info.ndim = static_cast<int>(tensor.dim());
  info.numel = tensor.numel();
  info.sizes = tensor.sizes().data();
  info.strides = strided ? tensor.strides().data() : nullptr;
  info.contiguous = strided && tensor.is_contiguous();
  info.plain = strided && tensor.has_storage() && !tensor.is_meta() && !tensor.is_conj() && !tensor.is_neg() &&
               !tensor.is_quantized();
  bool addressed = strided && tensor.has_storage() && !tensor.is_meta();
  info.data = addressed ? tensor.data_ptr() : nullptr;
  info.span = addressed ? span_of(tensor) : 0;
  if (addressed) {
    const c10::StorageImpl *storage = tensor.storage().unsafeGetStorageImpl();
    info.storage = storage->data();
    info.storage_bytes = storage->nbytes();
  }
  return info;
}

} // namespace

/* Memory never moves once it has a handle: others may hold its address. */
xt_tensor *wrap(at::Tensor tensor) {
  if (tensor.has_storage()) tensor.storage().unsafeGetStorageImpl()->set_resizable(false);
  xt_tensor_info info = describe(tensor);
  auto *handle = new Handle();
  handle->reapable.run = destroy;
  handle->references = 1;
  handle->info = info;
  handle->tensor = std::move(tensor); /* the impl that info points into is the same */
  host->tensor_count(+1);
  return handle;
}

namespace {

xt_status tensor_empty(xt_dtype dtype, int ndim, const int64_t *sizes, xt_tensor **out, xt_error *error) {
  return guard(error,
               [&] { *out = wrap(at::empty(at::IntArrayRef(sizes, ndim), at::TensorOptions(scalar_type(dtype)))); });
}

/* Built by hand rather than with at::from_blob, whose checks abort the VM and whose deleter costs an allocation. */
xt_status tensor_foreign(const xt_foreign *memory, xt_tensor **out, xt_error *error) {
  bool owned = false;
  xt_status status = guarded(error, [&] {
    auto type = scalar_type(memory->dtype);
    auto device = device_of(memory->device);
    auto key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
    size_t last = 0;
    bool empty = false;
    for (int d = 0; d < memory->ndim; d++) {
      last += static_cast<size_t>((memory->sizes[d] - 1) * memory->strides[d]);
      empty |= memory->sizes[d] == 0;
    }
    size_t bytes = empty ? 0 : (last + 1) * xt_dtype_get(memory->dtype)->size;
    at::DataPtr data(memory->data, memory->owner, memory->release, device);
    owned = true;
    c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                               std::move(data), nullptr, false));
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                           c10::scalarTypeToTypeMeta(type));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(memory->sizes, memory->ndim),
                                                        at::IntArrayRef(memory->strides, memory->ndim));
    *out = wrap(std::move(tensor));
    (*out)->light = memory->light;
  });
  if (!owned) memory->release(memory->owner);
  return status;
}

xt_status tensor_mark(const xt_tensor *tensor, bool requires_grad, xt_tensor **out, xt_error *error) {
  return guard(error, [&] {
    *out = wrap(unwrap(tensor));
    (*out)->requires_grad = requires_grad;
  });
}

/* Values as plain contiguous CPU memory. */
at::Tensor plain(const at::Tensor &tensor) {
  if (tensor.is_meta()) refuse(XT_STATUS_unsupported, "a meta tensor has a shape and a dtype but no values");
  at::Tensor values = tensor;
  if (values.is_nested()) refuse(XT_STATUS_unsupported, "a nested tensor has no single shape; use its values");
  if (values.layout() != at::kStrided) values = values.to_dense();
  if (values.is_quantized()) values = values.dequantize();
  return values.resolve_conj().resolve_neg().cpu().contiguous();
}

xt_status tensor_plain(const xt_tensor *tensor, xt_tensor **out, xt_error *error) {
  return guard(error, [&] { *out = wrap(plain(unwrap(tensor))); });
}

xt_status tensor_to(const xt_tensor *tensor, xt_dtype dtype, xt_device device, xt_tensor **out, xt_error *error) {
  return guard(error, [&] { *out = wrap(unwrap(tensor).to(device_of(device), scalar_type(dtype))); });
}

/* The same values in a type that LibTorch can compare. */
at::Tensor comparable(const at::Tensor &tensor) {
  switch (xt_dtype_from_torch(static_cast<int>(tensor.scalar_type()))) {
  case XT_complex32: return tensor.to(at::kComplexFloat);
  case XT_uint16: return tensor.view(at::kShort);
  case XT_uint32: return tensor.view(at::kInt);
  case XT_uint64: return tensor.view(at::kLong);
  case XT_float8_e5m2:
  case XT_float8_e4m3fn:
  case XT_float8_e5m2fnuz:
  case XT_float8_e4m3fnuz:
  case XT_float8_e8m0fnu: return tensor.to(at::kFloat);
  default: return tensor;
  }
}

xt_status tensor_equal(const xt_tensor *a, const xt_tensor *b, bool *equal, xt_error *error) {
  return guard(error, [&] {
    const at::Tensor &x = unwrap(a), &y = unwrap(b);
    *equal = x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes();
    if (!*equal) return;
    bool simple = is_strided(x) && is_strided(y) && x.device() == y.device() && !x.is_meta() && !x.is_quantized() &&
                  !y.is_quantized();
    *equal = simple ? at::equal(comparable(x), comparable(y)) : at::equal(comparable(plain(x)), comparable(plain(y)));
  });
}

/* ---- Operators: values to the types of a schema ---- */

struct Name {
  const char *text;
  int64_t number;
};
const Name layouts[] = {{"strided", 0}, {"sparse", 1},     {"sparse_coo", 1}, {"sparse_csr", 2},
                        {"mkldnn", 3},  {"sparse_csc", 4}, {"sparse_bsr", 5}, {"sparse_bsc", 6}};
const Name memory_formats[] = {
    {"contiguous_format", 0}, {"preserve_format", 1}, {"channels_last", 2}, {"channels_last_3d", 3}};
const Name qschemes[] = {
    {"per_tensor_affine", 0}, {"per_channel_affine", 1}, {"per_tensor_symmetric", 2}, {"per_channel_symmetric", 3}};

template <size_t N> bool by_name(const Name (&names)[N], const char *text, c10::IValue &out) {
  for (const Name &name : names)
    if (!strcmp(name.text, text)) {
      out = name.number;
      return true;
    }
  return false;
}

/* :infinity and its kin, as Elixir has no such floats. */
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
  for (const auto &known : {std::make_pair("cpu", XT_DEVICE_CPU), std::make_pair("cuda", XT_DEVICE_CUDA),
                            std::make_pair("mps", XT_DEVICE_MPS), std::make_pair("meta", XT_DEVICE_META)})
    if (text == known.first) {
      out = device_of({known.second, static_cast<int>(index)});
      return true;
    }
  return false;
}

/* How far a value had to be bent to fit; the overload that bends least is taken. */
enum Cost { EXACT = 0, WIDENED = 100, REPEATED = 200, WRAPPED = 1000 };

bool coerce(const c10::TypePtr &type, const xt_value &value, int64_t repeat, bool may_wrap, c10::IValue &out,
            int &cost);

bool coerce_list(const c10::TypePtr &element, const xt_value &value, int64_t repeat, c10::IValue &out, int &cost) {
  /* Sizes, dtypes and the like travel as plain integers. */
  auto kind = element->kind();
  bool as_int = kind == c10::TypeKind::SymIntType || kind == c10::TypeKind::ScalarTypeType ||
                kind == c10::TypeKind::LayoutType || kind == c10::TypeKind::MemoryFormatType;
  c10::impl::GenericList list(as_int ? c10::TypePtr(c10::IntType::get()) : element);
  if (value.kind == XT_VALUE_LIST) {
    list.reserve(value.list.count);
    for (size_t i = 0; i < value.list.count; i++) {
      c10::IValue item;
      if (!coerce(element, value.list.items[i], 0, false, item, cost)) return false;
      list.push_back(std::move(item));
    }
  } else {
    /* torch takes one number where it says int[2] */
    c10::IValue item;
    if (repeat <= 0 || value.kind == XT_VALUE_TENSOR || !coerce(element, value, 0, false, item, cost)) return false;
    for (int64_t i = 0; i < repeat; i++) list.push_back(item);
    cost += REPEATED;
  }
  out = std::move(list);
  return true;
}

bool coerce(const c10::TypePtr &type, const xt_value &value, int64_t repeat, bool may_wrap, c10::IValue &out,
            int &cost) {
  at::Scalar scalar;
  switch (type->kind()) {
  case c10::TypeKind::OptionalType:
    if (value.kind == XT_VALUE_NIL) {
      out = c10::IValue();
      return true;
    }
    return coerce(type->containedTypes()[0], value, repeat, may_wrap, out, cost);
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
    return true;
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
  case c10::TypeKind::LayoutType: return value.kind == XT_VALUE_NAME && by_name(layouts, value.name.text, out);
  case c10::TypeKind::MemoryFormatType:
    return value.kind == XT_VALUE_NAME && by_name(memory_formats, value.name.text, out);
  case c10::TypeKind::QSchemeType: return value.kind == XT_VALUE_NAME && by_name(qschemes, value.name.text, out);
  case c10::TypeKind::ListType: return coerce_list(type->containedTypes()[0], value, repeat, out, cost);
  default: return false;
  }
}

std::string words_for(const xt_value &value) {
  switch (value.kind) {
  case XT_VALUE_NIL: return "nil";
  case XT_VALUE_BOOL: return value.boolean ? "true" : "false";
  case XT_VALUE_INT: return "the integer " + std::to_string(value.integer);
  case XT_VALUE_FLOAT: return "the float " + std::to_string(value.number);
  case XT_VALUE_COMPLEX: return "a complex number";
  case XT_VALUE_TEXT:
    return "the string \"" + std::string(value.text.data, std::min<size_t>(value.text.size, 40)) + "\"";
  case XT_VALUE_NAME:
    return value.name.indexed ? "{:" + std::string(value.name.text) + ", " + std::to_string(value.name.index) + "}"
                              : ":" + std::string(value.name.text);
  case XT_VALUE_TENSOR: return "a tensor";
  case XT_VALUE_LIST: return "a list of " + std::to_string(value.list.count);
  }
  return "something else";
}

/* ---- Operators: overload resolution ---- */

struct Match {
  std::vector<c10::IValue> stack;
  int cost = 0;
  size_t fitted = 0;   /* arguments that fitted before the problem */
  std::string problem; /* empty: the schema takes the call */
};

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

/* ---- Operators: what may be written ---- */

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

/* ---- Operators: results ---- */

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

/* ---- The process ---- */

void manual_seed(uint64_t seed) {
  xt_error ignored;
  guard(&ignored, [&] { at::manual_seed(seed); });
}

xt_status cuda_memory(int index, size_t *free, size_t *total, xt_error *error) {
  return guard(error, [&] {
    device_of({XT_DEVICE_CUDA, index});
    /* The CUDA runtime is a dependency of the library this code is in, so a look-up through its handle finds it
     * without CUDA's headers. */
    Dl_info self;
    void *library = dladdr(reinterpret_cast<void *>(cuda_memory), &self)
                        ? dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                        : nullptr;
    auto set_device = library ? reinterpret_cast<int (*)(int)>(dlsym(library, "cudaSetDevice")) : nullptr;
    auto get_info = library ? reinterpret_cast<int (*)(size_t *, size_t *)>(dlsym(library, "cudaMemGetInfo")) : nullptr;
    if (library) dlclose(library);
    if (!set_device || !get_info) refuse(XT_STATUS_unsupported, "the CUDA runtime could not be asked for its memory");
    if (set_device(index) != 0 || get_info(free, total) != 0)
      refuse(XT_STATUS_torch, "CUDA refused to tell its memory");
  });
}

int num_threads() { return at::get_num_threads(); }

void set_num_threads(int threads) {
  xt_error ignored;
  guard(&ignored, [&] { at::set_num_threads(threads); });
}

const xt_torch_api api = {TORCH_VERSION_TEXT, set_num_threads, num_threads,  has_dtype,      cuda_count,  has_mps,
                          cuda_memory,        manual_seed,     tensor_empty, tensor_foreign, tensor_mark, tensor_plain,
                          tensor_to,          tensor_equal,    op,           archive_save,   archive_load};

} // namespace
} // namespace xt

extern "C" __attribute__((visibility("default"))) xt_status xt_torch_open(const xt_torch_host *given,
                                                                          const xt_torch_api **out, xt_error *error) {
  if (given->abi != XT_TORCH_ABI)
    return xt_error_set(error, XT_STATUS_torch,
                        "extorch.so and extorch_torch.so are of different builds: run make again");
  xt::host = given;
  return xt::guard(error, [&] {
    static xt::CountedAllocator allocator;
    c10::SetCPUAllocator(&allocator);
    /* Symbolising a backtrace takes milliseconds an exception, and nobody would read it. */
    c10::SetStackTraceFetcher(std::function<std::string()>([] { return std::string(); }));
    xt::operators(); /* a few milliseconds, here rather than in the first call */
    *out = &xt::api;
  });
}
