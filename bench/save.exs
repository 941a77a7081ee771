# How long does saving take, in fresh OS processes, against a plain write() loop of the same bytes and against torch.save?
# How much memory does it take, and who else notices?
Code.require_file("data.exs", __DIR__)
alias Bench.Data

dir = Data.dir()
limits = Path.join(dir, "limits")

{_, 0} =
  System.cmd(System.get_env("CC", "cc"), ["-O2", "-o", limits, Path.join(__DIR__, "limits.c")])

sizes = Data.llm_sizes()
total = 2 * Enum.sum(sizes)
target = Path.join(dir, "saved.pt")
number = fn text -> text && text |> String.trim() |> String.to_float() end

# Tensors whose memory was touched, a ticker that wants to run every millisecond, and the largest memory meanwhile.
ours = """
[path, sizes, limits] = System.argv()
rss = fn name -> [_, kb] = Regex.run(~r/\#{name}:\\s+(\\d+) kB/, File.read!("/proc/self/status")); String.to_integer(kb) end
term = sizes |> String.split(",") |> Enum.with_index() |> Map.new(fn {n, i} -> {"layers.\#{i}.weight", ExTorch.ones({String.to_integer(n)}, dtype: :float16)} end)
File.rm(path)
ExTorch.save!(%{"a" => ExTorch.tensor([1.0])}, path)
File.rm(path)
System.cmd(limits, ["-3000000000", "#{Data.rest()}"])
base = rss.("VmRSS")
File.write("/proc/self/clear_refs", "5")
#{Data.ticker()}
{time, :ok} = :timer.tc(fn -> ExTorch.save(term, path, fsync: false) end)
peak = rss.("VmHWM")
worst = worst.()
IO.puts(Enum.join([time / 1000, peak - base, worst], " "))
"""

theirs = """
import sys, time, torch, os, subprocess
sizes = [int(n) for n in sys.argv[2].split(",")]
x = {"layers.%d.weight" % i: torch.ones(n, dtype=torch.float16) for i, n in enumerate(sizes)}
if os.path.exists(sys.argv[1]): os.unlink(sys.argv[1])
subprocess.run([sys.argv[3], "-3000000000", "#{Data.rest()}"])
t = time.perf_counter()
torch.save(x, sys.argv[1])
print((time.perf_counter() - t) * 1000)
"""

paths =
  Enum.flat_map(:code.get_path(), fn dir ->
    if to_string(dir) =~ "extorch", do: ["-pa", to_string(dir)], else: []
  end)

list = Enum.join(sizes, ",")

# Each after a rest, and right after memory was touched and given back (limits.c says why).
runs =
  for _ <- 1..5 do
    limit = Data.limit(limits, [target, to_string(total), Data.rest()])
    {text, 0} = System.cmd("elixir", paths ++ ["-e", ours, target, list, limits])
    [ms, kb, worst] = String.split(text)
    peer = number.(Data.python(theirs, [target, list, limits]))
    {limit, String.to_float(ms), String.to_integer(kb), String.to_float(worst), peer}
  end

loops = Enum.map(runs, fn run -> run |> elem(0) |> elem(0) end)
saves = Enum.map(runs, &elem(&1, 1))
peers = Enum.map(runs, &elem(&1, 4))
mine = Data.middle(saves)

IO.puts(
  "#{Float.round(total / 1.0e9, 2)} GB, 291 tensors, to #{dir}, medians of 5 fresh processes"
)

Data.show_runs("write() loop", loops)
of_loop = Float.round(mine / Data.middle(loops), 2)
Data.show_runs("ExTorch.save, with CRC", saves, "#{of_loop} of the loop")

if hd(peers),
  do:
    Data.show_runs("torch.save", peers, "#{Float.round(Data.middle(peers) / mine, 2)} times ours")

extra = runs |> Enum.map(&elem(&1, 2)) |> Enum.max()
IO.puts("memory: #{Float.round(extra / 1024, 1)} MiB more at its peak")
worst = Enum.map(runs, &elem(&1, 3))
calm = Enum.map(runs, fn run -> run |> elem(0) |> elem(1) end)
Data.show_ticker(worst, calm)
File.rm(target)

many =
  Map.new(0..19_999, fn i ->
    {"layers.#{div(i, 9)}.block.#{rem(i, 9)}.weight", ExTorch.full({64}, 1.5)}
  end)

small = """
import sys, time, torch
x = {"layers.%d.block.%d.weight" % (i // 9, i % 9): torch.full((64,), 1.5) for i in range(20000)}
best = 1e9
for i in range(7):
    t = time.perf_counter()
    torch.save(x, sys.argv[1])
    best = min(best, time.perf_counter() - t)
print(best * 1000)
"""

peer = number.(Data.python(small, [target]))

for format <- [:zip, :safetensors, :legacy, :streaming] do
  ms = Data.best(7, fn -> ExTorch.save!(many, target, fsync: false, format: format) end)

  note =
    if peer && format == :zip,
      do:
        "#{Float.round(peer / ms, 1)} times faster than torch.save (#{Float.round(peer, 1)} ms)",
      else: ""

  Data.show("20,000 tensors: save as #{format}, best of 7", ms, note)
end

File.rm_rf!(dir)
