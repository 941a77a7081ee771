# How long does a whole load of 2 GB take, in a fresh OS process on each side, against a plain read() loop of the same
# bytes into fresh huge pages, and against torch.load? How much memory does it take, and who else notices?
Code.require_file("data.exs", __DIR__)
alias Bench.Data

path = Data.write(Path.join(Data.dir(), "llm.pt"), Data.llm_sizes(), 2, "HalfStorage")
size = File.stat!(path).size

# In C: a loop in Python would not be the limit.
limits = Path.join(Data.dir(), "limits")

{_, 0} =
  System.cmd(System.get_env("CC", "cc"), [
    "-O2",
    "-o",
    limits,
    Path.join(__DIR__, "limits.c")
  ])

torch = """
import subprocess, sys, time, torch
subprocess.run([sys.argv[2], "-3000000000", "#{Data.rest()}"])
t = time.perf_counter()
x = torch.load(sys.argv[1])
print((time.perf_counter() - t) * 1000)
"""

# In a fresh VM: the load, the largest memory during it, and a ticker that wants to run every millisecond.
ours = """
[path, mode, limits] = System.argv()
rss = fn name -> [_, kb] = Regex.run(~r/\#{name}:\\s+(\\d+) kB/, File.read!("/proc/self/status")); String.to_integer(kb) end
ExTorch.info()
System.cmd(limits, ["-3000000000", "#{Data.rest()}"])
base = rss.("VmRSS")
#{Data.ticker()}
opts = if mode == "mmap", do: [mmap: true], else: []
{time, object} = :timer.tc(fn -> ExTorch.load!(path, opts) end)
peak = rss.("VmHWM")
worst = worst.()
IO.puts(Enum.join([time / 1000, (peak - base) * 1024, worst, map_size(object)], " "))
"""

fresh = fn mode ->
  paths =
    Enum.flat_map(:code.get_path(), fn dir ->
      if to_string(dir) =~ "extorch", do: ["-pa", to_string(dir)], else: []
    end)

  {text, 0} = System.cmd("elixir", paths ++ ["-e", ours, path, mode, limits])

  [ms, bytes, worst, 291 = _] =
    text
    |> String.split()
    |> Enum.map(fn n -> if n =~ ".", do: String.to_float(n), else: String.to_integer(n) end)

  {ms, bytes, worst}
end

number = fn text -> text && text |> String.trim() |> String.to_float() end

# The sides take turns, each after a rest, and right after 3 GB were touched and given back (limits.c says why).
runs =
  for _ <- 1..5 do
    System.cmd(limits, ["-3000000000", Data.rest()])
    {Data.limit(limits, [path]), fresh.("read"), number.(Data.python(torch, [path, limits]))}
  end

loops = Enum.map(runs, fn {{ms, _}, _, _} -> ms end)
loads = Enum.map(runs, fn {_, {ms, _, _}, _} -> ms end)
peers = Enum.map(runs, &elem(&1, 2))
mine = Data.middle(loads)

IO.puts("#{Float.round(size / 1.0e9, 2)} GB, 291 tensors, medians of 5 fresh processes")
Data.show_runs("read() loop into fresh huge pages", loops)
of_loop = Float.round(mine / Data.middle(loops), 2)
Data.show_runs("ExTorch.load", loads, "#{of_loop} of the loop")

if hd(peers),
  do:
    Data.show_runs("torch.load", peers, "#{Float.round(Data.middle(peers) / mine, 2)} times ours")

extra = runs |> Enum.map(fn {_, {_, bytes, _}, _} -> bytes end) |> Enum.max()
IO.puts("memory: the payload and #{Float.round((extra - size) / 1024 / 1024, 1)} MiB")
worst = Enum.map(runs, fn {_, {_, _, ms}, _} -> ms end)
calm = Enum.map(runs, fn {{_, ms}, _, _} -> ms end)
Data.show_ticker(worst, calm)
{ms, _, _} = fresh.("mmap")
Data.show("ExTorch.load, mmap: true, nothing touched", ms)

File.rm_rf!(Path.dirname(path))
