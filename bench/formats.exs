# Do formats other than zip take longer to open? Opens 20,000 tensors as zip, legacy and safetensors, and compares with
# Python's safetensors. Are .npz files, stored and compressed, read as fast as by numpy? How much time and memory does one tensor of a 2 GB legacy file take?
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
alias Bench.{Data, Measure}
alias ExTorch.Checkpoint

dir = Data.dir()
zip = Path.join(dir, "many.pt")
legacy = Path.join(dir, "many.legacy.pt")

# Files of torch itself where there is one: it stores every object in the memo, which costs each reader some time.
torch_save = """
import sys, torch
x = {"layers.%d.block.%d.weight" % (i // 9, i % 9): torch.full((64,), 1.5) for i in range(20000)}
torch.save(x, sys.argv[1])
torch.save(x, sys.argv[2], _use_new_zipfile_serialization=False)
"""

unless Measure.python(torch_save, [zip, legacy]) do
  Data.write(zip, List.duplicate(64, 20_000))
  Data.write_legacy(legacy, List.duplicate(64, 20_000))
end

safetensors = Data.write_safetensors(Path.join(dir, "many.safetensors"), 20_000)

open_ms = fn path -> Measure.median_time(15, fn -> Checkpoint.open!(path) end) end
open_ms.(zip)
zip_ms = open_ms.(zip)
Measure.print("20,000 tensors, zip: open", zip_ms)

for {name, path} <- [legacy: legacy, safetensors: safetensors] do
  ms = open_ms.(path)
  Measure.print("20,000 tensors, #{name}: open", ms, "#{Measure.ratio(ms, zip_ms)} of the zip")
end

safe_open = """
import sys, time
try: from safetensors import safe_open
except ImportError: print("none"); sys.exit()
best = 1e9
for i in range(25):
    t = time.perf_counter()
    with safe_open(sys.argv[1], "pt") as f: f.keys()
    best = min(best, time.perf_counter() - t)
print(best * 1000)
"""

ms = Measure.best_time(25, fn -> safetensors |> Checkpoint.open!() |> Checkpoint.keys() end)

note =
  case Measure.python(safe_open, [safetensors]) do
    text when text in [nil, "none"] ->
      "no Python safetensors to compare with"

    text ->
      "#{Float.round(String.to_float(text) / ms, 1)} times faster than Python's safe_open and keys (#{text} ms)"
  end

Measure.print("20,000 tensors, safetensors: open and keys, best", ms, note)

# ---- numpy ----

write_arrays = """
import sys, numpy
random = numpy.random.default_rng(1)
large = {"a%d" % i: random.standard_normal(1 << 20, dtype="f4").round(2) for i in range(32)}
small = {"a%d" % i: numpy.full(64, i, "f4") for i in range(5000)}
numpy.savez(sys.argv[1], **large)
numpy.savez_compressed(sys.argv[2], **large)
numpy.savez(sys.argv[3], **small)
numpy.savez_compressed(sys.argv[4], **small)
"""

numpy_load = """
import sys, time, numpy
best = 1e9
for i in range(int(sys.argv[2])):
    t = time.perf_counter()
    with numpy.load(sys.argv[1]) as f: x = {name: f[name] for name in f.files}
    best = min(best, time.perf_counter() - t)
    del x
print(best * 1000)
"""

arrays = [
  {"128 MB, 32 arrays, npz", "large.npz", 10},
  {"128 MB, 32 arrays, compressed npz", "large.packed.npz", 3},
  {"5,000 arrays, npz", "small.npz", 5},
  {"5,000 arrays, compressed npz", "small.packed.npz", 5}
]

if Measure.python(write_arrays, for({_label, name, _runs} <- arrays, do: Path.join(dir, name))) do
  for {label, name, runs} <- arrays do
    path = Path.join(dir, name)
    ms = Measure.best_time(runs, fn -> ExTorch.load!(path) end)
    numpy = numpy_load |> Measure.python([path, "#{runs}"]) |> String.to_float()
    note = "#{Measure.ratio(numpy, ms)} times as fast as numpy.load (#{Float.round(numpy, 1)} ms)"
    Measure.print("#{label}: load, best", ms, note)
  end
end

large = Data.write_legacy(Path.join(dir, "llm.legacy.pt"), Data.llm_sizes(), 2, "HalfStorage")

one_tensor =
  Measure.memory_code() <>
    """
    [path] = System.argv()
    ExTorch.tensor([1.0]) |> ExTorch.Tensor.to_list()
    before = memory_kib.("VmRSS")
    {time, tensor} =
      :timer.tc(fn ->
        ckpt = ExTorch.Checkpoint.open!(path)
        ExTorch.Checkpoint.tensor!(ckpt, Enum.at(ExTorch.Checkpoint.keys(ckpt), 100))
      end)
    IO.puts(Enum.join([time / 1000, (memory_kib.("VmHWM") - before) * 1024 - ExTorch.Tensor.nbytes(tensor)], " "))
    """

[ms, bytes] = Measure.elixir(one_tensor, [large])

Measure.print(
  "2 GB, 291 tensors, legacy: open and read one tensor",
  String.to_float(ms),
  "peak memory: the tensor and #{Float.round(String.to_integer(bytes) / 1024 / 1024, 1)} MiB"
)

File.rm_rf!(dir)
