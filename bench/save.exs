# How long does it take to save 2 GB, how much memory does it need, and does it delay other processes of the VM?
#
# Compared with a plain write() loop of the same bytes and with torch.save, each in a fresh OS process. Then saves 20,000
# small tensors in every format.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
alias Bench.{Data, Measure}

dir = Data.dir()
limits = Measure.limits(dir)
total = Data.llm_sizes_total()
target = Path.join(dir, "saved.pt")

extorch_save =
  Measure.memory_code() <>
    """
    [path, sizes, limits | args] = System.argv()
    term =
      for {n, i} <- Enum.with_index(String.split(sizes, ",")), into: %{},
        do: {"layers.\#{i}.weight", ExTorch.ones({String.to_integer(n)}, dtype: :float16)}
    File.rm(path)
    ExTorch.save!(%{"a" => ExTorch.tensor([1.0])}, path)
    File.rm(path)
    System.cmd(limits, args)
    before = memory_kib.("VmRSS")
    File.write("/proc/self/clear_refs", "5")
    #{Measure.ticker_code()}
    {time, :ok} = :timer.tc(fn -> ExTorch.save(term, path, fsync: false) end)
    peak = memory_kib.("VmHWM")
    IO.puts(Enum.join([time / 1000, peak - before, gap.()], " "))
    """

torch_save = """
import sys, time, torch, os, subprocess
sizes = [int(n) for n in sys.argv[2].split(",")]
x = {"layers.%d.weight" % i: torch.ones(n, dtype=torch.float16) for i, n in enumerate(sizes)}
if os.path.exists(sys.argv[1]): os.unlink(sys.argv[1])
subprocess.run(sys.argv[3:])
t = time.perf_counter()
torch.save(x, sys.argv[1])
print((time.perf_counter() - t) * 1000)
"""

# The three alternate. Before each, memory is touched and freed (limits.c explains why).
args = [target, Enum.join(Data.llm_sizes(), ","), limits | Measure.pause_and_touch_memory()]

runs =
  for _ <- 1..5 do
    loop = Measure.plain_loop(limits, [target, to_string(total), Measure.pause()])
    [ms, kib, gap] = Measure.elixir(extorch_save, args)
    extorch = {String.to_float(ms), String.to_integer(kib), String.to_float(gap)}
    {loop, extorch, Measure.python_ms(torch_save, args)}
  end

loop_runs = for {{ms, _}, _, _} <- runs, do: ms
extorch_runs = for {_, {ms, _, _}, _} <- runs, do: ms
torch_runs = for {_, _, ms} when ms != nil <- runs, do: ms
loop_ms = Measure.median(loop_runs)

IO.puts(
  "#{Float.round(total / 1.0e9, 2)} GB, 291 tensors, to #{dir}, medians of 5 fresh processes"
)

Measure.print_runs("write() loop", loop_runs)

Measure.print_comparison(
  "ExTorch.save, with CRC",
  extorch_runs,
  "torch.save",
  torch_runs,
  loop_ms
)

extra = runs |> Enum.map(fn {_, {_, kib, _}, _} -> kib end) |> Enum.max()
IO.puts("peak memory: the tensors and #{Float.round(extra / 1024, 1)} MiB")

Measure.print_gaps(
  for({_, {_, _, gap}, _} <- runs, do: gap),
  for({{_, gap}, _, _} <- runs, do: gap)
)

File.rm(target)

many = Map.new(0..19_999, fn i -> {Data.name(i), ExTorch.full({64}, 1.5)} end)

torch_save_many = """
import sys, time, torch
x = {"layers.%d.block.%d.weight" % (i // 9, i % 9): torch.full((64,), 1.5) for i in range(20000)}
best = 1e9
for i in range(7):
    t = time.perf_counter()
    torch.save(x, sys.argv[1])
    best = min(best, time.perf_counter() - t)
print(best * 1000)
"""

torch_ms = Measure.python_ms(torch_save_many, [target])

for format <- [:zip, :safetensors, :legacy, :streaming] do
  ms = Measure.best_time(7, fn -> ExTorch.save!(many, target, fsync: false, format: format) end)

  note =
    if torch_ms && format == :zip,
      do:
        "#{Float.round(torch_ms / ms, 1)} times faster than torch.save (#{Float.round(torch_ms, 1)} ms)",
      else: ""

  Measure.print("20,000 tensors: save as #{format}, best of 7", ms, note)
end

File.rm_rf!(dir)
