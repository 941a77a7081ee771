/* Operators that end the process, or write to other memory, because LibTorch does not check an argument.
 * test/fire/operators.exs finds them. Those that have a better alternative are denied, for the others the argument is
 * checked here. */
#include "torch/operators.hpp"
#include "torch/shim.hpp"

namespace xt {
namespace {

struct Denied {
  const char *name;
  const char *why;
};

const char memory[] = "it reads files, belongs to autograd or replaces memory that may be shared; create a new tensor";
const char names[] = "it is for tensors with named dimensions, which ExTorch does not have; use \"permute\"";
const char cells[] =
    "LibTorch ends the process if its arguments do not match; dequantize the weights and use \"lstm\", "
    "\"gru\" or their cells";
const char conv2d[] = "LibTorch ends the process if its arguments do not match; use \"conv2d\"";
const char conv3d[] = "LibTorch ends the process if its arguments do not match; use \"conv3d\"";
const char shuffle[] = "LibTorch ends the process if its arguments do not match; use \"channel_shuffle\"";
const char backward[] = "LibTorch ends the process if its arguments do not match, and it belongs to autograd";
const char qparams[] = "LibTorch ends the process if its arguments do not match; use \"aminmax\"";
const char packed[] =
    "LibTorch does not check batch sizes, and ends the process if they do not match; pass padded input";

const Denied denied[] = {{"aten::from_file", memory},
                         {"aten::set_", memory},
                         {"aten::set_data", memory},
                         {"aten::requires_grad_", memory},
                         {"aten::retain_grad", memory},
                         {"aten::_backward", memory},
                         {"aten::record_stream", memory},
                         {"aten::align_as", names},
                         {"aten::align_tensors", names},
                         {"aten::align_to", names},
                         {"aten::quantized_lstm_cell", cells},
                         {"aten::quantized_gru_cell", cells},
                         {"aten::quantized_rnn_relu_cell", cells},
                         {"aten::quantized_rnn_tanh_cell", cells},
                         {"aten::quantized_lstm", cells},
                         {"aten::quantized_gru", cells},
                         {"aten::native_channel_shuffle", shuffle},
                         {"aten::unfold_backward", backward},
                         {"aten::thnn_conv2d", conv2d},
                         {"aten::slow_conv3d", conv3d},
                         {"aten::slow_conv3d_forward", conv3d},
                         {"aten::slow_conv_dilated2d", conv2d},
                         {"aten::slow_conv_dilated3d", conv3d},
                         {"aten::matrix_exp_backward", backward},
                         {"aten::choose_qparams_optimized", qparams},
                         {"aten::lstm.data", packed},
                         {"aten::gru.data", packed},
                         {"aten::rnn_relu.data", packed},
                         {"aten::rnn_tanh.data", packed}};

bool contains(const std::string &text, const char *part) { return text.find(part) != std::string::npos; }

/* The arguments of a call, by name. */
struct Arguments {
  const c10::FunctionSchema &schema;
  const Stack &stack;

  [[noreturn]] void refuse(const std::string &parameter, const std::string &expected) const {
    fail(XT_STATUS_bad_argument, schema.name() + ": argument `" + parameter + "` must be " + expected +
                                     "; LibTorch does not check it and would end the process");
  }

  bool has(const char *name) const { return schema.argumentIndexWithName(name).has_value(); }

  /* Returns an undefined tensor if there is no such argument, or if it is nil or no CPU tensor. */
  at::Tensor tensor(const char *name) const {
    auto index = schema.argumentIndexWithName(name);
    if (!index || !stack[*index].isTensor()) return {};
    const at::Tensor &found = stack[*index].toTensor();
    return found.defined() && found.device().is_cpu() && is_strided(found) ? found : at::Tensor();
  }

  /* Checks an integer or the integers of a list. */
  void check_ints(const char *name, int64_t least) const {
    constexpr int64_t most = INT32_MAX;
    auto index = schema.argumentIndexWithName(name);
    if (!index) return;
    const c10::IValue &value = stack[*index];
    auto check = [&](int64_t number) {
      if (number < least || number > most)
        refuse(name,
               "between " + std::to_string(least) + " and " + std::to_string(most) + ", got " + std::to_string(number));
    };
    if (value.isInt()) check(value.toInt());
    else if (value.isIntList())
      for (int64_t number : value.toIntVector()) check(number);
  }
};

/* Sizes and steps of windows: LibTorch divides by some of them, and computes addresses with all of them. */
void check_windows(const Arguments &arguments) {
  for (const char *name : {"kernel_size", "dilation", "groups", "num_groups", "upscale_factor", "downscale_factor"})
    arguments.check_ints(name, 1);
  if (arguments.has("kernel_size") || arguments.has("dilation")) arguments.check_ints("stride", 1);
  for (const char *name : {"padding", "output_padding"}) arguments.check_ints(name, -INT32_MAX);
}

void check_between(const Arguments &arguments, const char *name, const at::Tensor &tensor, double least, double end) {
  if (!tensor.numel()) return;
  at::Tensor values = tensor.to(at::kDouble);
  if (!values.ge(least).logical_and(values.lt(end)).all().item<bool>())
    arguments.refuse(name, "at least " + std::to_string(static_cast<int64_t>(least)) + " and less than " +
                               std::to_string(static_cast<int64_t>(end)));
}

/* The number of spatial dimensions of a pooling operator, which is in its name. Checks that its input has them. */
int64_t check_planes(const Arguments &arguments, const std::string &name, const at::Tensor &self) {
  int64_t dims = contains(name, "3d") ? 3 : contains(name, "2d") ? 2 : 1;
  if (self.dim() != dims + 1 && self.dim() != dims + 2)
    arguments.refuse("self", "of " + std::to_string(dims + 1) + " or " + std::to_string(dims + 2) + " dimensions");
  return dims;
}

void check_same_shape(const Arguments &arguments, const at::Tensor &indices, const char *other) {
  at::Tensor tensor = arguments.tensor(other);
  if (tensor.defined() && tensor.sizes() != indices.sizes())
    arguments.refuse("indices", std::string("of the same shape as `") + other + "`");
}

/* The indices of max pooling are positions in one plane of the larger tensor. */
void check_pool_indices(const Arguments &arguments, const std::string &name) {
  bool unpool = contains(name, "max_unpool");
  if (!unpool && !(contains(name, "max_pool") && contains(name, "backward"))) return;
  at::Tensor indices = arguments.tensor("indices"), self = arguments.tensor("self");
  if (!indices.defined() || !self.defined()) return;
  int64_t dims = check_planes(arguments, name, self), plane = 1;
  check_same_shape(arguments, indices, unpool ? "self" : "grad_output");
  auto size = arguments.schema.argumentIndexWithName("output_size");
  if (unpool && size && arguments.stack[*size].isIntList()) {
    arguments.check_ints("output_size", 0);
    for (int64_t d : arguments.stack[*size].toIntVector())
      if (__builtin_mul_overflow(plane, d, &plane)) arguments.refuse("output_size", "smaller");
  } else {
    for (int64_t d = 1; d <= dims; d++) plane *= self.size(-d);
  }
  check_between(arguments, "indices", indices, 0, static_cast<double>(plane));
}

/* Fractional pooling takes the positions of its windows from random numbers, for each plane and dimension. */
void check_samples(const Arguments &arguments, const std::string &name) {
  at::Tensor samples = arguments.tensor("random_samples"), self = arguments.tensor("self");
  if (!samples.defined() || !self.defined()) return;
  int64_t dims = check_planes(arguments, name, self), batch = self.dim() == dims + 2 ? self.size(0) : 1;
  if (samples.sizes() != at::IntArrayRef({batch, self.size(-dims - 1), dims}))
    arguments.refuse("random_samples", "of the shape {batch, channels, " + std::to_string(dims) + "}");
  check_between(arguments, "random_samples", samples, 0, 1);
}

/* One value per channel. */
void check_channels(const Arguments &arguments, const std::string &name) {
  if (!contains(name, "batch_norm")) return;
  at::Tensor input = arguments.tensor("input");
  if (!input.defined()) return;
  if (input.dim() < 2) arguments.refuse("input", "of two or more dimensions");
  if (!input.numel() && contains(name, "update_stats")) arguments.refuse("input", "not empty");
  for (const char *part :
       {"weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd", "save_var", "mean", "invstd"}) {
    at::Tensor values = arguments.tensor(part);
    bool optional = part[0] == 's' && !values.numel(); /* not saved in evaluation */
    if (values.defined() && !optional && (values.dim() != 1 || values.size(0) != input.size(1)))
      arguments.refuse(part, "one value for each of the " + std::to_string(input.size(1)) + " channels of `input`");
  }
}

/* One number of bins, or one tensor of edges, for each column. */
void check_bins(const Arguments &arguments, const std::string &name) {
  auto bins = arguments.schema.argumentIndexWithName("bins");
  at::Tensor self = arguments.tensor("self");
  if (!contains(name, "histogramdd") || !bins || !self.defined() || !arguments.stack[*bins].isList()) return;
  if (self.dim() < 2 || arguments.stack[*bins].toListRef().size() != static_cast<size_t>(self.size(-1)))
    arguments.refuse("bins", "a list with an item for each element of the last dimension of `self`");
  arguments.check_ints("bins", 1);
}

/* Of a sparse tensor without dimensions, LibTorch permutes the dimensions of its indices, of which there are none. */
void check_permuted(const Arguments &arguments, const std::string &name) {
  auto index = arguments.schema.argumentIndexWithName("self");
  if (name != "aten::permute" || !index || !arguments.stack[*index].isTensor()) return;
  const at::Tensor &self = arguments.stack[*index].toTensor();
  if (self.defined() && self.is_sparse() && !self.dim()) arguments.refuse("self", "dense, or have dimensions");
}

} // namespace

void check_allowed(const std::string &full) {
  for (const Denied &entry : denied)
    if (full == entry.name) fail(XT_STATUS_forbidden, full + " is not available: " + entry.why);
}

bool needs_checks(const c10::FunctionSchema &schema) {
  static const char *const checked[] = {"kernel_size", "dilation",       "groups",           "num_groups",
                                        "bins",        "upscale_factor", "downscale_factor", "random_samples",
                                        "padding",     "output_padding"};
  const std::string &name = schema.name();
  if (contains(name, "batch_norm") || contains(name, "max_unpool") || contains(name, "max_pool")) return true;
  if (schema.overload_name() == "data" || name == "aten::permute") return true;
  for (const char *parameter : checked)
    if (schema.argumentIndexWithName(parameter)) return true;
  return false;
}

void check_arguments(const c10::FunctionSchema &schema, const Stack &stack) {
  Arguments arguments{schema, stack};
  check_allowed(schema.name() + "." + schema.overload_name());
  check_windows(arguments);
  check_pool_indices(arguments, schema.name());
  check_samples(arguments, schema.name());
  check_bins(arguments, schema.name());
  check_channels(arguments, schema.name());
  check_permuted(arguments, schema.name());
}

} // namespace xt
