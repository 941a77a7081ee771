# How long does it take to open a checkpoint, and to read one tensor? Compared with Python's torch.load, with mmap where
# that version has it.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
alias Bench.{Data, Measure}
alias ExTorch.Checkpoint

dir = Data.dir()

torch_load = """
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

torch_ms = fn path, runs ->
  case Measure.python(torch_load, [path, to_string(runs)]) do
    nil -> nil
    text -> with [version, ms] <- String.split(text), do: {version, String.to_float(ms)}
  end
end

compare = fn ms, torch ->
  case torch do
    {version, torch_ms} ->
      "#{Float.round(torch_ms / ms, 1)} times faster than torch #{version} (#{Float.round(torch_ms, 1)} ms)"

    nil ->
      "no torch to compare with"
  end
end

# A file of torch itself where there is one: it stores every object in the memo, which costs each reader some time.
torch_save = """
import sys, torch
torch.save({"layers.%d.block.%d.weight" % (i // 9, i % 9): torch.full((64,), 1.5) for i in range(20000)}, sys.argv[1])
"""

many = Path.join(dir, "many.pt")
unless Measure.python(torch_save, [many]), do: Data.write(many, List.duplicate(64, 20_000))
torch = torch_ms.(many, 3)

ms = Measure.median_time(7, fn -> many |> Checkpoint.open!() |> Checkpoint.keys() end)
Measure.print("20,000 tensors: open and keys", ms, compare.(ms, torch))
ms = Measure.median_time(5, fn -> ExTorch.load!(many) end)
Measure.print("20,000 tensors: load all", ms, compare.(ms, torch))

llm = Data.write(Path.join(dir, "llm.pt"), Data.llm_sizes(), 2, "HalfStorage")
torch = torch_ms.(llm, 3)
ms = Measure.median_time(7, fn -> Checkpoint.open!(llm) end)
Measure.print("2 GB, 291 tensors: open", ms, compare.(ms, torch))
name = llm |> Checkpoint.open!() |> Checkpoint.keys() |> Enum.at(100)
ms = Measure.median_time(7, fn -> llm |> Checkpoint.open!() |> Checkpoint.tensor!(name) end)
Measure.print("2 GB, 291 tensors: open and read one tensor", ms, compare.(ms, torch))

ms =
  Measure.median_time(7, fn ->
    llm |> Checkpoint.open!() |> Checkpoint.read_storage("0", 1_000_000, 4096)
  end)

Measure.print("2 GB, 291 tensors: open and read 4 KiB of a storage", ms)

IO.puts("The time to open grows with the number of tensors, not of bytes:")

for count <- [1_000, 10_000, 100_000] do
  path = Data.write(Path.join(dir, "count.pt"), List.duplicate(4, count))
  Measure.touch(512 * 1024 * 1024)
  ms = Measure.median_time(9, fn -> Checkpoint.open!(path) end)
  Measure.print("  #{count} tensors", ms, "#{Float.round(ms * 1000 / count, 2)} µs per tensor")
end

File.rm_rf!(dir)
