# How long does it take to convert 2 GB between .pt and safetensors, and how much memory does it need besides the mapping?
#
# Compared with ExTorch.save of the same tensors from memory into the same format, each in a fresh VM. Casts are compared
# with the same save: they read twice the bytes that they write.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
alias Bench.{Data, Measure}

dir = Data.dir()
limits = Measure.limits(dir)
total = Data.llm_sizes_total()
[pt, st] = Enum.map(["source.pt", "source.safetensors"], &Path.join(dir, &1))

# The peak of a field of /proc/self/status while the function runs, sampled every few milliseconds.
sample = """
peak = fn fun ->
  parent = self()
  sampler =
    spawn_link(fn ->
      loop = fn loop, peak ->
        peak = max(peak, memory_kib.("RssAnon"))
        receive do
          :stop -> send(parent, {:peak, peak})
        after
          3 -> loop.(loop, peak)
        end
      end
      loop.(loop, 0)
    end)
  before = memory_kib.("RssAnon")
  {time, :ok} = :timer.tc(fun)
  send(sampler, :stop)
  receive do {:peak, peak} -> IO.puts("\#{time / 1000} \#{peak - before}") end
end
"""

save =
  Measure.memory_code() <>
    sample <>
    """
    [path, sizes, limits | args] = System.argv()
    term =
      for {n, i} <- Enum.with_index(String.split(sizes, ",")), into: %{},
        do: {"layers.\#{i}.weight", ExTorch.ones({String.to_integer(n)}, dtype: :float16)}
    ExTorch.save!(%{"a" => ExTorch.tensor([1.0])}, path)
    File.rm(path)
    System.cmd(limits, args)
    peak.(fn -> ExTorch.save(term, path, fsync: false) end)
    """

convert =
  Measure.memory_code() <>
    sample <>
    """
    [path, source, dtype, limits | args] = System.argv()
    ExTorch.save!(%{"a" => ExTorch.tensor([1.0])}, path)
    File.rm(path)
    dtype = if dtype != "", do: String.to_existing_atom(dtype)
    System.cmd(limits, args)
    peak.(fn -> ExTorch.convert(source, path, fsync: false, dtype: dtype) end)
    """

run = fn script, args ->
  [ms, kib] = Measure.elixir(script, args ++ [limits | Measure.pause_and_touch_memory()])
  File.rm(hd(args))
  {String.to_float(ms), String.to_integer(kib)}
end

sizes = Enum.join(Data.llm_sizes(), ",")
for path <- [pt, st], do: Measure.elixir(save, [path, sizes, limits | Measure.touch_memory()])

IO.puts(
  "#{Float.round(total / 1.0e9, 2)} GB, 291 tensors, in #{dir}, medians of 3 fresh processes"
)

cases = [
  {"pt to safetensors", pt, "out.safetensors", ""},
  {"safetensors to pt", st, "out.pt", ""},
  {"pt to safetensors, float16 to bfloat16", pt, "out.safetensors", "bfloat16"}
]

for {label, source, name, dtype} <- cases do
  out = Path.join(dir, name)

  {saves, converts} =
    Enum.unzip(for _ <- 1..3, do: {run.(save, [out, sizes]), run.(convert, [out, source, dtype])})

  [save_ms, convert_ms] = for runs <- [saves, converts], do: Enum.map(runs, &elem(&1, 0))
  Measure.print_runs("save of the same tensors as #{Path.extname(name)}", save_ms)
  speed = Measure.ratio(Measure.median(save_ms), Measure.median(convert_ms))
  extra = converts |> Enum.map(&elem(&1, 1)) |> Enum.max()
  note = "#{speed} of the speed of save, #{Float.round(extra / 1024, 1)} MiB beyond the mapping"
  Measure.print_runs(label, convert_ms, note)
end

File.rm_rf!(dir)
