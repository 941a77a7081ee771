/* Tensors: handles, descriptions, foreign memory, conversion and comparison. */
#include "torch/shim.hpp"

namespace xt {
namespace {

struct Handle : xt_tensor {
  Handle(const at::Tensor &of, bool foreign) : xt_tensor(), tensor(of), held(of, foreign) {}
  at::Tensor tensor;
  HeldStorage held;                   /* freed before the tensor */
  std::unique_ptr<FrozenParts> parts; /* freed before the tensor, whose memory they are */
};

} // namespace

void destroy(xt_reapable *item) {
  /* A deleter may throw; there is no caller to report it to. */
  try {
    delete static_cast<Handle *>(reinterpret_cast<xt_tensor *>(item));
  } catch (...) {
  }
  host->tensor_count(-1);
}

const at::Tensor &unwrap(const xt_tensor *tensor) {
  return is_foreign(tensor) ? foreign_tensor(tensor) : static_cast<const Handle *>(tensor)->tensor;
}

bool has_dtype(xt_dtype dtype) {
  int number = xt_dtype_get(dtype)->torch;
  return number < static_cast<int>(at::ScalarType::Undefined);
}

at::ScalarType scalar_type(xt_dtype dtype) {
  if (!has_dtype(dtype))
    fail(XT_STATUS_unsupported, std::string("dtype ") + xt_dtype_get(dtype)->name +
                                    " is not supported by the linked LibTorch (" TORCH_VERSION_TEXT ")");
  return static_cast<at::ScalarType>(xt_dtype_get(dtype)->torch);
}

bool is_strided(const at::Tensor &tensor) { return tensor.layout() == at::kStrided && !tensor.is_nested(); }

size_t span_of(const at::Tensor &tensor) {
  if (tensor.numel() == 0) return 0;
  size_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); d++) last += static_cast<size_t>((tensor.size(d) - 1) * tensor.stride(d));
  return (last + 1) * tensor.element_size();
}

namespace {

xt_tensor_info describe(const at::Tensor &tensor) {
  xt_tensor_info info = {};
  if (tensor.is_nested()) fail(XT_STATUS_unsupported, "nested tensors are not supported; use their values");
  if (tensor.dim() > XT_MAX_DIMS) fail(XT_STATUS_unsupported, "tensors with " XT_TOO_MANY_DIMS " are not supported");
  info.dtype = xt_dtype_from_torch(static_cast<int>(tensor.scalar_type()));
  if (info.dtype == XT_DTYPE_COUNT)
    fail(XT_STATUS_unsupported,
         std::string("dtype ") + c10::toString(tensor.scalar_type()) + " is not supported by ExTorch");
  bool strided = is_strided(tensor);
  info.device = from_torch_device(tensor.device());
  info.layout = static_cast<uint8_t>(tensor.layout());
  if (tensor.is_quantized()) {
    auto scheme = tensor.qscheme();
    info.scheme = scheme == at::kPerTensorAffine    ? XT_SCHEME_PER_TENSOR
                  : scheme == at::kPerChannelAffine ? XT_SCHEME_PER_CHANNEL
                                                    : XT_SCHEME_OTHER;
  }
  info.ndim = static_cast<int>(tensor.dim());
  info.numel = tensor.numel();
  info.sizes = tensor.sizes().data();
  info.strides = strided ? tensor.strides().data() : nullptr;
  info.contiguous = strided && tensor.is_contiguous();
  bool addressed = strided && tensor.has_storage() && !tensor.is_meta();
  info.plain = addressed && !tensor.is_conj() && !tensor.is_neg() && !tensor.is_quantized();
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

xt_tensor *wrap(at::Tensor tensor, bool foreign) {
  if (tensor.has_storage()) tensor.storage().unsafeGetStorageImpl()->set_resizable(false);
  xt_tensor_info info = describe(tensor);
  std::unique_ptr<FrozenParts> parts(has_parts(tensor) ? new FrozenParts(tensor) : nullptr);
  auto *handle = new Handle(tensor, foreign);
  handle->reapable.run = destroy;
  handle->references = 1;
  handle->info = info;
  handle->parts = std::move(parts);
  host->tensor_count(+1);
  return handle;
}

/* Makes a tensor without the dispatcher. */
static at::Tensor make(c10::Storage storage, at::ScalarType type, at::IntArrayRef sizes, at::IntArrayRef strides,
                       int64_t offset) {
  auto key = c10::computeDispatchKey(type, at::kStrided, storage.device());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                         c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  return tensor;
}

at::Tensor view_of(const at::Tensor &bytes, at::ScalarType type, at::IntArrayRef sizes, at::IntArrayRef strides,
                   int64_t offset) {
  return make(bytes.storage(), type, sizes, strides, offset);
}

xt_status tensor_bytes(xt_device device, size_t size, xt_tensor **out, xt_error *error) {
  return guard(error, [&] {
    auto options = at::TensorOptions(at::kByte).device(to_torch_device(device));
    *out = wrap(at::empty({static_cast<int64_t>(size)}, options));
  });
}

xt_status tensor_view(const xt_tensor *bytes, xt_dtype dtype, const xt_tensor_layout *layout, xt_tensor **out,
                      xt_error *error) {
  return guard(error, [&] {
    auto ndim = static_cast<size_t>(layout->ndim);
    *out = wrap(view_of(unwrap(bytes), scalar_type(dtype), at::IntArrayRef(layout->sizes, ndim),
                        at::IntArrayRef(layout->strides, ndim), layout->offset));
  });
}

xt_status tensor_empty(xt_dtype dtype, int ndim, const int64_t *sizes, xt_tensor **out, xt_error *error) {
  return guard(error,
               [&] { *out = wrap(at::empty(at::IntArrayRef(sizes, ndim), at::TensorOptions(scalar_type(dtype)))); });
}

/* Does not use at::from_blob: its checks abort the VM and its deleter costs an allocation. */
xt_status tensor_foreign(const xt_foreign *memory, xt_tensor **out, xt_error *error) {
  if (memory->device.type == XT_DEVICE_CPU) return foreign_new(memory, out, error);
  bool owned = false;
  xt_status status = catch_errors(error, [&] {
    auto type = scalar_type(memory->dtype);
    auto device = to_torch_device(memory->device);
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
    auto tensor = make(std::move(storage), type, at::IntArrayRef(memory->sizes, memory->ndim),
                       at::IntArrayRef(memory->strides, memory->ndim), 0);
    *out = wrap(std::move(tensor), true);
    (*out)->light = memory->light;
  });
  if (!owned) memory->release(memory->owner);
  return status;
}

xt_status tensor_set_requires_grad(const xt_tensor *tensor, bool requires_grad, xt_tensor **out, xt_error *error) {
  return guard(error, [&] {
    *out = wrap(unwrap(tensor));
    (*out)->requires_grad = requires_grad;
  });
}

namespace {

/* Returns the values as plain contiguous CPU memory. */
at::Tensor plain(const at::Tensor &tensor) {
  if (tensor.is_meta()) fail(XT_STATUS_unsupported, "a meta tensor has no values, only a shape and a dtype");
  at::Tensor values = tensor;
  if (values.is_nested()) fail(XT_STATUS_unsupported, "nested tensors are not supported; use their values");
  if (values.layout() != at::kStrided) values = values.to_dense();
  if (values.is_quantized()) values = values.dequantize();
  return values.resolve_conj().resolve_neg().cpu().contiguous();
}

} // namespace

xt_status tensor_plain(const xt_tensor *tensor, xt_tensor **out, xt_error *error) {
  return guard(error, [&] { *out = wrap(plain(unwrap(tensor))); });
}

xt_status tensor_to(const xt_tensor *tensor, xt_dtype dtype, xt_device device, xt_tensor **out, xt_error *error) {
  return guard(error, [&] { *out = wrap(unwrap(tensor).to(to_torch_device(device), scalar_type(dtype))); });
}

namespace {

/* Converts to a dtype that at::equal supports. */
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

} // namespace

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

} // namespace xt
