// Loads a checkpoint with LibTorch's C++ API and prints one line for each item of its dict.
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto object = torch::jit::pickle_load(bytes);
  for (const auto &entry : object.toGenericDict()) {
    std::cout << entry.key().toStringRef() << " ";
    if (entry.value().isTensor()) {
      const auto &tensor = entry.value().toTensor();
      std::cout << c10::toString(tensor.scalar_type()) << " " << tensor.sizes() << " " << tensor.strides() << " "
                << tensor.sum().item<double>();
    } else {
      std::cout << entry.value();
    }
    std::cout << "\n";
  }
}
