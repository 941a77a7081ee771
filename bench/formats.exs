# Does a format other than zip cost more to open? 20,000 tensors as legacy, safetensors and zip, against each other and
# against Python's safetensors; and what one tensor of a 2 GB legacy file takes.
Code.require_file("data.exs", __DIR__)
alias Bench.Data
alias ExTorch.Checkpoint

dir = Data.dir()
names = for i <- 0..19_999, do: "layers.#{div(i, 9)}.block.#{rem(i, 9)}.weight"

# Torch writes zip and legacy where it is found: what it remembers costs each reader something.
torch = """
import sys, torch
x = {"layers.%d.block.%d.weight" % (i // 9, i % 9): torch.full((64,), 1.5) for i in range(20000)}
torch.save(x, sys.argv[1])
torch.save(x, sys.argv[2], _use_new_zipfile_serialization=False)
"""

zip = Path.join(dir, "many.pt")
legacy = Path.join(dir, "many.legacy.pt")
safetensors = Path.join(dir, "many.safetensors")

unless Data.python(torch, [zip, legacy]) do
  Data.write(zip, List.duplicate(64, 20_000))
  Data.write_legacy(legacy, List.duplicate(64, 20_000))
end

json =
  names
  |> Enum.with_index()
  |> Enum.map_join(",", fn {name, i} ->
    ~s("#{name}":{"dtype":"F32","shape":[64],"data_offsets":[#{256 * i},#{256 * (i + 1)}]})
  end)

json = "{" <> json <> "}"
json = json <> String.duplicate(" ", rem(8 - rem(byte_size(json), 8), 8))

File.write!(safetensors, [
  <<byte_size(json)::little-64>>,
  json,
  :binary.copy(<<1.5::float-32-little>>, 64 * 20_000)
])

open = fn path -> Data.median(15, fn -> Checkpoint.open!(path) end) end
open.(zip)
base = open.(zip)
Data.show("20,000 tensors, zip: open", base)

for {name, path} <- [legacy: legacy, safetensors: safetensors] do
  ms = open.(path)
  Data.show("20,000 tensors, #{name}: open", ms, "#{Float.round(ms / base, 2)} of the zip")
end

peer = """
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

ms = Data.best(25, fn -> safetensors |> Checkpoint.open!() |> Checkpoint.keys() end)

note =
  case Data.python(peer, [safetensors]) do
    text when text in [nil, "none"] ->
      "no Python safetensors to compare with"

    text ->
      "#{Float.round(String.to_float(text) / ms, 1)} times faster than Python's safe_open and keys (#{text} ms)"
  end

Data.show("20,000 tensors, safetensors: open and keys, best", ms, note)

# One tensor of a large legacy file: its own bytes, and little more.
large = Data.write_legacy(Path.join(dir, "llm.legacy.pt"), Data.llm_sizes(), 2, "HalfStorage")

script = """
[path] = System.argv()
rss = fn name -> [_, kb] = Regex.run(~r/\#{name}:\\s+(\\d+) kB/, File.read!("/proc/self/status")); String.to_integer(kb) end
ExTorch.tensor([1.0]) |> ExTorch.Tensor.to_list()
base = rss.("VmRSS")
{time, tensor} = :timer.tc(fn -> ckpt = ExTorch.Checkpoint.open!(path); ExTorch.Checkpoint.tensor!(ckpt, ExTorch.Checkpoint.keys(ckpt) |> Enum.at(100)) end)
IO.puts(Enum.join([time / 1000, (rss.("VmHWM") - base) * 1024 - ExTorch.Tensor.nbytes(tensor)], " "))
"""

paths =
  Enum.flat_map(:code.get_path(), fn dir ->
    if to_string(dir) =~ "extorch", do: ["-pa", to_string(dir)], else: []
  end)

{text, 0} = System.cmd("elixir", paths ++ ["-e", script, large])
[ms, bytes] = String.split(text)

Data.show(
  "2 GB, 291 tensors, legacy: open and one tensor",
  String.to_float(ms),
  "its bytes and #{Float.round(String.to_integer(bytes) / 1024 / 1024, 1)} MiB"
)

File.rm_rf!(dir)
