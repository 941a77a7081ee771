# How long does it take to load 2 GB from the disk, when nothing of the file is in the page cache?
#
# Compared with a parallel reader in C, dd and torch.load, each in a fresh OS process. The page cache is dropped before
# each: all of it as root, otherwise that of the file. The files are in the temporary directory, which must be on a disk
# (TMPDIR selects another one). A virtual machine's disk may still be in the cache of its host.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
alias Bench.{Data, Measure}

runs = 5
dir = Path.join(System.tmp_dir!(), "extorch_cold_#{System.pid()}")
File.mkdir_p!(dir)
System.at_exit(fn _status -> File.rm_rf!(dir) end)
{fstype, 0} = System.cmd("stat", ["-f", "-c", "%T", dir])

if String.trim(fstype) in ["tmpfs", "ramfs"],
  do: raise("#{dir} is in memory; set TMPDIR to a directory on a disk")

limits = Measure.limits(dir)
zip = Data.write(Path.join(dir, "llm.pt"), Data.llm_sizes(), 2, "HalfStorage")
legacy = Data.write_legacy(Path.join(dir, "llm.legacy.pt"), Data.llm_sizes(), 2, "HalfStorage")
safetensors = Path.join(dir, "llm.safetensors")
ExTorch.convert!(zip, safetensors)
touch = fn -> System.cmd(limits, Measure.touch_memory()) end
drop = fn path -> {_, 0} = System.cmd(limits, ["-d", path]) end

# Memory is touched and freed before each (limits.c explains why), and then the cache is dropped.
read = fn threads, path ->
  touch.()
  drop.(path)
  {ms, _gap} = Measure.plain_loop(limits, ["-r", "#{threads}", path])
  ms
end

dd = fn path ->
  drop.(path)

  Measure.milliseconds(fn ->
    {_, 0} = System.cmd("dd", ["if=#{path}", "of=/dev/null", "bs=4M"], stderr_to_stdout: true)
  end)
end

# `job` is an expression of `path`.
extorch = fn job, path ->
  script = """
  [path, limits | args] = System.argv()
  ExTorch.info()
  System.cmd(limits, args)
  {_, 0} = System.cmd(limits, ["-d", path])
  {time, _} = :timer.tc(fn -> #{job} end)
  IO.puts(time / 1000)
  """

  [ms] = Measure.elixir(script, [path, limits | Measure.touch_memory()])
  String.to_float(ms)
end

torch_load = """
import subprocess, sys, time, torch
subprocess.run(sys.argv[2:4])
subprocess.run([sys.argv[2], "-d", sys.argv[1]])
t = time.perf_counter()
x = torch.load(sys.argv[1])
print((time.perf_counter() - t) * 1000)
"""

torch = fn path -> Measure.python_ms(torch_load, [path, limits | Measure.touch_memory()]) end
load = "ExTorch.load!(path)"

jobs = [
  {"C, eight threads of pread", fn -> read.(8, zip) end},
  {"ExTorch.load, zip", fn -> extorch.(load, zip) end},
  {"ExTorch.load, safetensors", fn -> extorch.(load, safetensors) end},
  {"ExTorch.load, legacy", fn -> extorch.(load, legacy) end},
  {"ExTorch.load, drop_behind: true",
   fn -> extorch.("ExTorch.load!(path, drop_behind: true)", zip) end},
  {"ExTorch.load, mmap: :populate",
   fn -> extorch.("ExTorch.load!(path, mmap: :populate)", safetensors) end},
  {"every tensor of a stream",
   fn ->
     extorch.(
       "path |> ExTorch.Checkpoint.open!() |> ExTorch.Checkpoint.stream() |> Enum.reduce(0, fn _, n -> n + 1 end)",
       zip
     )
   end},
  {"ExTorch.load, readers: 1", fn -> extorch.("ExTorch.load!(path, readers: 1)", zip) end},
  {"C, one thread", fn -> read.(1, zip) end},
  {"dd of 4 MiB", fn -> dd.(zip) end},
  {"torch.load", fn -> torch.(zip) end}
]

# They alternate.
results = for _ <- 1..runs, {label, job} <- jobs, do: {label, job.()}
times = Enum.group_by(results, &elem(&1, 0), &elem(&1, 1))
limit = Measure.median(times["C, eight threads of pread"])
size = Float.round(File.stat!(zip).size / 1.0e9, 2)
IO.puts("#{size} GB, 291 tensors, #{String.trim(fstype)}, medians of #{runs} fresh processes")

for {label, _job} <- jobs, times[label] != List.duplicate(nil, runs) do
  ratio = Measure.ratio(Measure.median(times[label]), limit)
  Measure.print_runs(label, times[label], "#{ratio} times eight threads")
end
