# How long does it take to load 2 GB, how much memory does it need, and does it delay other processes of the VM?
#
# Compared with plain read() loops of the same bytes into fresh huge pages, one with one thread and one with as many as
# ExTorch uses, and with torch.load, each in a fresh OS process.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
alias Bench.{Data, Measure}

dir = Data.dir()
path = Data.write(Path.join(dir, "llm.pt"), Data.llm_sizes(), 2, "HalfStorage")
size = File.stat!(path).size
limits = Measure.limits(dir)

torch_load = """
import subprocess, sys, time, torch
subprocess.run(sys.argv[2:])
t = time.perf_counter()
x = torch.load(sys.argv[1])
print((time.perf_counter() - t) * 1000)
"""

extorch_load =
  Measure.memory_code() <>
    """
    [path, mode, limits | args] = System.argv()
    ExTorch.info()
    System.cmd(limits, args)
    before = memory_kib.("VmRSS")
    #{Measure.ticker_code()}
    opts = if mode == "mmap", do: [mmap: true], else: []
    {time, object} = :timer.tc(fn -> ExTorch.load!(path, opts) end)
    peak = memory_kib.("VmHWM")
    gap = gap.()
    291 = map_size(object)
    IO.puts(Enum.join([time / 1000, (peak - before) * 1024, gap], " "))
    """

load = fn mode ->
  args = [path, mode, limits | Measure.pause_and_touch_memory()]
  [ms, bytes, gap] = Measure.elixir(extorch_load, args)
  {String.to_float(ms), String.to_integer(bytes), String.to_float(gap)}
end

# As many threads as ExTorch has readers of a cached file.
cpus = System.schedulers_online()
readers = if cpus > 2, do: min(cpus - 1, 8), else: cpus

# They alternate. Before each, memory is touched and freed (limits.c explains why).
runs =
  for _ <- 1..5 do
    System.cmd(limits, Measure.pause_and_touch_memory())
    {single, _gap} = Measure.plain_loop(limits, [path])
    System.cmd(limits, Measure.pause_and_touch_memory())
    loop = Measure.plain_loop(limits, ["-r", "#{readers}", path])
    extorch = load.("read")
    torch = Measure.python_ms(torch_load, [path, limits | Measure.pause_and_touch_memory()])
    {single, loop, extorch, torch}
  end

single_runs = for {ms, _, _, _} <- runs, do: ms
loop_runs = for {_, {ms, _}, _, _} <- runs, do: ms
extorch_runs = for {_, _, {ms, _, _}, _} <- runs, do: ms
torch_runs = for {_, _, _, ms} when ms != nil <- runs, do: ms
loop_ms = Measure.median(loop_runs)

IO.puts("#{Float.round(size / 1.0e9, 2)} GB, 291 tensors, medians of 5 fresh processes")
Measure.print_runs("read() loop into fresh huge pages", single_runs)
Measure.print_runs("the same by #{readers} threads", loop_runs)

Measure.print_comparison("ExTorch.load", extorch_runs, "torch.load", torch_runs, loop_ms)

extra = runs |> Enum.map(fn {_, _, {_, bytes, _}, _} -> bytes - size end) |> Enum.max()
IO.puts("peak memory: the file's size and #{Float.round(extra / 1024 / 1024, 1)} MiB")

Measure.print_gaps(
  for({_, _, {_, _, gap}, _} <- runs, do: gap),
  for({_, {_, gap}, _, _} <- runs, do: gap)
)

{ms, _, _} = load.("mmap")
Measure.print("ExTorch.load, mmap: true, without touching the data", ms)

File.rm_rf!(dir)
