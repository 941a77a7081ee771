# How long until a checkpoint is open, and a tensor is there? Against Python's torch.load (with mmap where it has that).
Code.require_file("data.exs", __DIR__)
alias Bench.Data
alias ExTorch.Checkpoint

dir = Data.dir()

torch = """
import sys, time, torch, gc
best = 1e9
for i in range(int(sys.argv[2])):
    t = time.perf_counter()
    try: x = torch.load(sys.argv[1], mmap=True, weights_only=True)
    except TypeError: x = torch.load(sys.argv[1])
    best = min(best, time.perf_counter() - t)
    del x; gc.collect()
print(torch.__version__, best * 1000)
"""

peer = fn path, runs ->
  case Data.python(torch, [path, to_string(runs)]) do
    nil -> nil
    text -> with [version, ms] <- String.split(text), do: {version, String.to_float(ms)}
  end
end

against = fn ms, reference ->
  case reference do
    {version, theirs} ->
      "#{Float.round(theirs / ms, 1)} times faster than torch #{version} (#{Float.round(theirs, 1)} ms)"

    nil ->
      "no torch to compare with"
  end
end

# Torch's own file where there is one: it remembers every object, which costs each reader something.
torch_many = """
import sys, torch
torch.save({"layers.%d.block.%d.weight" % (i // 9, i % 9): torch.full((64,), 1.5) for i in range(20000)}, sys.argv[1])
"""

many = Path.join(dir, "many.pt")
unless Data.python(torch_many, [many]), do: Data.write(many, List.duplicate(64, 20_000))
reference = peer.(many, 3)

ms = Data.median(7, fn -> many |> Checkpoint.open!() |> Checkpoint.keys() end)
Data.show("20,000 tensors: open and keys", ms, against.(ms, reference))
ms = Data.median(5, fn -> ExTorch.load!(many) end)
Data.show("20,000 tensors: load all", ms, against.(ms, reference))

llm = Data.write(Path.join(dir, "llm.pt"), Data.llm_sizes(), 2, "HalfStorage")
reference = peer.(llm, 3)
ms = Data.median(7, fn -> Checkpoint.open!(llm) end)
Data.show("2 GB, 291 tensors: open", ms, against.(ms, reference))
name = llm |> Checkpoint.open!() |> Checkpoint.keys() |> Enum.at(100)
ms = Data.median(7, fn -> llm |> Checkpoint.open!() |> Checkpoint.tensor!(name) end)
Data.show("2 GB, 291 tensors: open and one tensor", ms, against.(ms, reference))
row = fn -> llm |> Checkpoint.open!() |> Checkpoint.read_storage("0", 1_000_000, 4096) end
Data.show("2 GB, 291 tensors: open and 4 KiB of a storage", Data.median(7, row))

IO.puts("open grows with tensors, not with bytes:")

for count <- [1_000, 10_000, 100_000] do
  path = Data.write(Path.join(dir, "count.pt"), List.duplicate(4, count))
  Data.warm(512 * 1024 * 1024)
  ms = Data.median(9, fn -> Checkpoint.open!(path) end)
  Data.show("  #{count} tensors", ms, "#{Float.round(ms * 1000 / count, 2)} µs a tensor")
end

File.rm_rf!(dir)
