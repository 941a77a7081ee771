# `make demo`: what ExTorch does, in a minute.
alias ExTorch.{Memory, Tensor}
alias ExTorch.Tensor.Blob

say = fn text -> IO.puts("\n" <> text) end

%{version: version, num_threads: threads} = ExTorch.info()
IO.puts("ExTorch with LibTorch #{version}, #{threads} thread(s) an operator")

say.("A tensor from nested lists:")
a = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]])
IO.inspect(a)

say.("Any operator of LibTorch by its name, here topk and einsum:")
IO.inspect(ExTorch.op("topk", [a, 1]))
IO.inspect(ExTorch.op("einsum", ["ij,kj->ik", [a, a]]))

say.("Handed over as a blob, and back, without a copy:")
blob = Blob.to_blob(a)
view = Blob.from_blob(blob, owner: :whoever_owns_it)
IO.puts("  address of the tensor 0x#{Integer.to_string(blob.ptr, 16)}")
IO.puts("  address of the view   0x#{Integer.to_string(Blob.to_blob(view).ptr, 16)}")
true = Blob.to_blob(view).ptr == blob.ptr
ExTorch.op("mul_", [view, 10])
IO.puts("  the view is multiplied by 10 in place, and the tensor shows it:")
IO.inspect(a)

say.("A binary over the same memory freezes it while the binary lives:")
binary = Tensor.to_binary(a)

try do
  ExTorch.op("zero_", [a])
rescue
  error in ExTorch.Error -> IO.puts("  #{inspect(error.reason)}: #{error.message}")
end

IO.puts("  the binary has #{byte_size(binary)} bytes")

say.("Errors say what to do:")

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

say.("A checkpoint that Python's torch 2.14 wrote, opened lazily:")
path = Path.expand("../test/fixtures/2.14.1/nested.pt", __DIR__)
{time, ckpt} = :timer.tc(fn -> ExTorch.Checkpoint.open!(path) end)
IO.puts("  open after #{time} µs: #{inspect(ckpt)}")
IO.puts("  its first names: #{ckpt |> ExTorch.Checkpoint.keys() |> Enum.take(4) |> inspect()}")
IO.puts("  one tensor, read now:")
IO.inspect(ExTorch.Checkpoint.tensor!(ckpt, "model.2.bias"))

say.("And loaded whole, as Elixir data:")
{:ok, training} = ExTorch.load(path)
IO.inspect(Map.take(training, ["epoch", "best", "ids", "big", "dtype", {1, "t"}]))
IO.inspect(hd(training["optimizer"]["param_groups"]))

say.("What is live in the node: #{inspect(Memory.live())}")
