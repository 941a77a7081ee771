# What does each use of the background gain? (`config :extorch, background: …`)
#
# The same job with and without the use, in turns, each in a fresh VM. Medians of five.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
alias Bench.{Data, Measure}

dir = Data.dir()
path = Data.write(Path.join(dir, "llm.pt"), Data.llm_sizes(), 2, "HalfStorage")
limits = Measure.limits(dir)

common = """
[path, uses, limits | args] = System.argv()
ExTorch.Memory.set_background(for name <- String.split(uses, ",", trim: true), do: String.to_atom(name))
"""

load = """
System.cmd(limits, args)
#{Measure.ticker_code()}
{time, object} = :timer.tc(fn -> ExTorch.load!(path, readers: 1) end)
gap = gap.()
291 = map_size(object)
IO.puts("\#{time / 1000} \#{gap}")
"""

receive_stream = """
{:ok, file} = :file.open(path, [:raw, :binary, :read])
System.cmd(limits, args)
#{Measure.ticker_code()}
chunks =
  Stream.repeatedly(fn -> :file.read(file, 1024 * 1024) end)
  |> Stream.take_while(&(&1 != :eof))
  |> Stream.map(&elem(&1, 1))
{time, {:ok, object, ""}} = :timer.tc(fn -> ExTorch.Streaming.load(chunks) end)
gap = gap.()
291 = map_size(object)
IO.puts("\#{time / 1000} \#{gap}")
"""

save = """
object = ExTorch.load!(path)
System.cmd(limits, args)
#{Measure.ticker_code()}
{time, :ok} = :timer.tc(fn -> ExTorch.save(object, path <> ".saved", fsync: false) end)
gap = gap.()
File.rm!(path <> ".saved")
IO.puts("\#{time / 1000} \#{gap}")
"""

read_one_by_one = """
{:ok, ckpt} = ExTorch.Checkpoint.open(path)
names = for e <- ExTorch.Checkpoint.entries(ckpt), e.nbytes in 4_000_000..32_000_000, do: e.name
#{Measure.ticker_code()}
{time, _} =
  :timer.tc(fn ->
    for _ <- 1..4, name <- Enum.take(names, 60) do
      {:ok, tensor} = ExTorch.Checkpoint.tensor(ckpt, name)
      ExTorch.Tensor.release(tensor)
    end
  end)
IO.puts("\#{time / 1000} \#{gap.()}")
"""

all = [:prefault, :checksum, :block_cache]

run = fn script, uses ->
  args = [path, Enum.join(uses, ","), limits | Measure.pause_and_touch_memory()]
  [ms, gap] = Measure.elixir(common <> script, args)
  {String.to_float(ms), String.to_float(gap)}
end

jobs = [
  {:prefault, "load 2 GB with one reader", load},
  {:prefault, "receive 2 GB in chunks of 1 MiB", receive_stream},
  {:checksum, "save 2 GB", save},
  {:block_cache, "240 tensors of 4 to 32 MB, one by one", read_one_by_one}
]

for {use, label, script} <- jobs do
  runs = for _ <- 1..5, do: {run.(script, all), run.(script, all -- [use])}
  on = for {{ms, _}, _} <- runs, do: ms
  off = for {_, {ms, _}} <- runs, do: ms
  gain = Float.round(100 * (1 - Measure.median(on) / Measure.median(off)), 0)
  Measure.print_runs("#{label}, with #{use}", on, "#{trunc(gain)} % less")
  Measure.print_runs("#{label}, without", off)

  Measure.print_gaps(
    for({{_, gap}, _} <- runs, do: gap),
    for({_, {_, gap}} <- runs, do: gap),
    "without it"
  )
end

File.rm_rf!(dir)
