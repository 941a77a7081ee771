/* LibTorch archives: torch::save and torch::load, reading and writing through callbacks.
 *
 * Loading uses LibTorch's own unpickler, so it is only for trusted files. */
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "torch/shim.hpp"

namespace xt {
namespace {

/* The tree of dotted names. LibTorch nests archives the way modules are nested. */
struct Branch {
  std::string name;
  const xt_tensor *tensor = nullptr;
  std::vector<std::unique_ptr<Branch>> children; /* in the order they were added */
  std::unordered_map<std::string, Branch *> by_name;

  /* Finds or adds the child. */
  Branch &child(const std::string &child_name) {
    Branch *&found = by_name[child_name];
    if (found) return *found;
    children.push_back(std::make_unique<Branch>());
    found = children.back().get();
    found->name = child_name;
    return *found;
  }
};

/* Limits the recursion of LibTorch and of this file. */
constexpr int max_levels = 1000;

void add(Branch &root, const xt_archive_item &item) {
  std::string name(item.name, item.name_size);
  Branch *branch = &root;
  int levels = 0;
  for (size_t from = 0; from <= name.size();) {
    if (++levels > max_levels) fail(XT_STATUS_bad_argument, "a tensor name has more than 1,000 parts");
    size_t dot = std::min(name.find('.', from), name.size());
    if (dot == from) fail(XT_STATUS_bad_argument, "a tensor name has an empty part: \"" + name + "\"");
    if (branch->tensor) fail(XT_STATUS_bad_argument, "\"" + name + "\" is nested inside the name of another tensor");
    branch = &branch->child(name.substr(from, dot - from));
    from = dot + 1;
  }
  if (branch->tensor || !branch->children.empty())
    fail(XT_STATUS_bad_argument, "\"" + name + "\" occurs twice, or other names are nested inside it");
  branch->tensor = item.tensor;
}

/* Returns the tensor with autograd's requires_grad set, so that LibTorch writes the flag. */
at::Tensor with_grad_flag(const xt_tensor *tensor) {
  if (!tensor->requires_grad || !at::isFloatingType(unwrap(tensor).scalar_type())) return unwrap(tensor);
  at::Tensor alias = unwrap(tensor).alias();
  alias.set_requires_grad(true);
  return alias;
}

void write(const Branch &branch, torch::serialize::OutputArchive &archive) {
  for (const auto &child : branch.children) {
    if (child->tensor) {
      archive.write(child->name, with_grad_flag(child->tensor));
    } else {
      torch::serialize::OutputArchive nested(archive.compilation_unit());
      write(*child, nested);
      archive.write(child->name, nested);
    }
  }
}

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

void read(torch::serialize::InputArchive &archive, const std::string &prefix, int depth, NamedTensors &found) {
  if (depth > max_levels) fail(XT_STATUS_limit, "the archive has more than 1,000 levels of nesting");
  for (const auto &key : archive.keys()) {
    c10::IValue value;
    if (!archive.try_read(key, value)) continue;
    if (value.isTensor()) {
      found.emplace_back(prefix + key, value.toTensor());
    } else if (value.isObject()) {
      torch::serialize::InputArchive nested;
      archive.read(key, nested);
      read(nested, prefix + key + ".", depth + 1, found);
    }
  }
}

} // namespace

xt_status archive_save(const xt_archive_item *items, size_t count, const xt_archive_io *io, xt_error *error) {
  return guard(error, [&] {
    Branch root;
    for (size_t i = 0; i < count; i++) add(root, items[i]);
    torch::serialize::OutputArchive archive(std::make_shared<torch::jit::CompilationUnit>());
    write(root, archive);
    archive.save_to([io](const void *data, size_t size) -> size_t {
      io->write(io->context, data, size);
      return size;
    });
  });
}

xt_status archive_load(const xt_archive_io *io, xt_archive_items *out, xt_error *error) {
  *out = {nullptr, 0};
  return guard(error, [&] {
    uint64_t size = 0;
    if (!io->size(io->context, &size)) fail(XT_STATUS_io, "the reader did not return its size");
    torch::serialize::InputArchive archive;
    archive.load_from(
        [io](uint64_t at, void *to, size_t n) -> size_t { return io->read(io->context, at, to, n) ? n : 0; },
        [size]() -> size_t { return size; }, at::Device(at::kCPU));
    NamedTensors found;
    read(archive, "", 0, found);
    out->list = static_cast<xt_archive_item *>(calloc(found.size() + 1, sizeof *out->list));
    if (!out->list) throw std::bad_alloc();
    for (auto &[name, tensor] : found) {
      xt_archive_item &item = out->list[out->count];
      item.name = static_cast<char *>(malloc(name.size() + 1));
      item.name_size = name.size();
      if (!item.name) throw std::bad_alloc();
      memcpy(item.name, name.data(), name.size());
      out->count++;
      bool requires_grad = tensor.requires_grad();
      item.tensor = wrap(tensor.detach());
      item.tensor->requires_grad = requires_grad;
    }
  });
}

} // namespace xt
