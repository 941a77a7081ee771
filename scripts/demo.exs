# `make demo`: a short tour of ExTorch.
alias ExTorch.{Memory, Tensor}
alias ExTorch.Tensor.Blob

section = fn text -> IO.puts("\n" <> text) end

%{version: version, num_threads: threads} = ExTorch.info()
IO.puts("ExTorch with LibTorch #{version}, #{threads} thread(s) per operator")

section.("Create a tensor from nested lists:")
a = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]])
IO.inspect(a)

section.("Call any LibTorch operator by name, here topk and einsum:")
IO.inspect(ExTorch.op("topk", [a, 1]))
IO.inspect(ExTorch.op("einsum", ["ij,kj->ik", [a, a]]))

section.("Convert a tensor to a blob and back without a copy:")
blob = Blob.to_blob(a)
view = Blob.from_blob(blob, owner: :any_term)
IO.puts("  address of the tensor 0x#{Integer.to_string(blob.ptr, 16)}")
IO.puts("  address of the view   0x#{Integer.to_string(Blob.to_blob(view).ptr, 16)}")
true = Blob.to_blob(view).ptr == blob.ptr
ExTorch.op("mul_", [view, 10])
IO.puts("  multiplying the view by 10 in place also changes the tensor:")
IO.inspect(a)

section.("A binary that shares the memory freezes it while the binary is referenced:")
binary = Tensor.to_binary(a)

try do
  ExTorch.op("zero_", [a])
rescue
  error in ExTorch.Error -> IO.puts("  #{inspect(error.reason)}: #{error.message}")
end

IO.puts("  the binary has #{byte_size(binary)} bytes")

section.("Errors say what is wrong and what to do:")

for fun <- [
      fn -> ExTorch.tensor([[1, 2], [3]]) end,
      fn -> ExTorch.op("sofmax", [a]) end,
      fn -> ExTorch.zeros({2}, dtype: :flaot32) end,
      fn -> ExTorch.op("topk", [a, "2"]) end
    ] do
  try do
    fun.()
  rescue
    error in ExTorch.Error -> IO.puts("  #{inspect(error.reason)}: #{error.message}")
  end
end

section.("Open a checkpoint that torch 2.14 saved, without reading its tensors:")
path = Path.expand("../test/fixtures/2.14.1/nested.pt", __DIR__)
{time, ckpt} = :timer.tc(fn -> ExTorch.Checkpoint.open!(path) end)
IO.puts("  opened in #{time} µs: #{inspect(ckpt)}")
IO.puts("  the first names: #{ckpt |> ExTorch.Checkpoint.keys() |> Enum.take(4) |> inspect()}")
IO.puts("  read one tensor:")
IO.inspect(ExTorch.Checkpoint.tensor!(ckpt, "model.2.bias"))

section.("Load the whole checkpoint as Elixir data:")
{:ok, training} = ExTorch.load(path)
IO.inspect(Map.take(training, ["epoch", "best", "ids", "big", "dtype", {1, "t"}]))
IO.inspect(hd(training["optimizer"]["param_groups"]))

section.("Native resources in use: #{inspect(Memory.live())}")
