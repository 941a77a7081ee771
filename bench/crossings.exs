# How much do many small native calls add to the cost of reading a file? Compares what Elixir does once per tensor or
# per chunk with one load of the same bytes.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
alias Bench.{Data, Measure}
alias ExTorch.{Checkpoint, Store, Streaming}

dir = Data.dir()
tensors = 10_000
runs = 9
path = Data.write(Path.join(dir, "crossings.pt"), List.duplicate(64, tensors))
names = path |> Checkpoint.open!() |> Checkpoint.keys()

# Runs the functions in turns. Returns the median time of each.
in_turns = fn functions ->
  rounds =
    for _ <- 1..runs do
      for {name, fun} <- functions, into: %{} do
        time = Measure.milliseconds(fun)
        ExTorch.Memory.collect()
        {name, time}
      end
    end

  Map.new(functions, fn {name, _} -> {name, Measure.median(Enum.map(rounds, & &1[name]))} end)
end

# ---- Tensors by name, and applied to a module ----

module = Map.new(names, &{&1, ExTorch.zeros({64})})
store = Store.PyTorch.new(path)
binary = File.read!(path)
open = Checkpoint.open!(path)
open_binary = Checkpoint.open!({:binary, binary})

times =
  in_turns.(
    load: fn -> ExTorch.load!(path) end,
    apply: fn -> {:ok, %{missing: [], errors: []}} = Store.apply_to(store, module) end,
    names: fn -> Enum.each(names, &Checkpoint.tensor!(open, &1)) end,
    binary: fn -> Enum.each(names, &Checkpoint.tensor!(open_binary, &1)) end
  )

note = fn time, to -> "#{Measure.ratio(time, to)} times the load" end
IO.puts("#{tensors} tensors of 256 bytes, medians of #{runs} runs in turns")
Measure.print("ExTorch.load", times.load)
Measure.print("Store.apply_to", times.apply, note.(times.apply, times.load))
Measure.print("Checkpoint.tensor by name, each", times.names, note.(times.names, times.load))

Measure.print(
  "Checkpoint.tensor by name, each, of a binary",
  times.binary,
  note.(times.binary, times.load)
)

# ---- Streams in small chunks ----

chunks = fn bytes, size ->
  for at <- 0..(byte_size(bytes) - 1)//size,
      do: binary_part(bytes, at, min(size, byte_size(bytes) - at))
end

feed = fn chunks ->
  Enum.reduce(chunks, Streaming.loader(), fn chunk, loader ->
    case Streaming.feed(loader, chunk) do
      {:more, loader} -> loader
      {:done, _object, _rest} -> nil
    end
  end)
end

large = File.read!(Data.write(Path.join(dir, "large.pt"), List.duplicate(4 * 1024 * 1024, 4)))

for {label, bytes} <- [{"#{tensors} small tensors", binary}, {"4 tensors of 16 MiB", large}] do
  # The end of the last chunk that is needed: what follows is the directory of the zip file.
  small = chunks.(bytes, 4096)

  times =
    in_turns.(
      whole: fn -> {:done, _, _} = Streaming.feed(Streaming.loader(), bytes) end,
      small: fn -> feed.(small) end
    )

  rate = fn ms -> "#{Float.round(byte_size(bytes) / ms / 1000, 1)} MB/s" end
  Measure.print("feed, one chunk, #{label}", times.whole, rate.(times.whole))
  per_chunk = Float.round(1000 * times.small / length(small), 2)

  Measure.print(
    "feed, chunks of 4 KiB, #{label}",
    times.small,
    "#{rate.(times.small)}, #{per_chunk} µs per chunk"
  )
end

# ---- Shards ----

shards = 20

files =
  for i <- 1..shards do
    tensors = for j <- 1..500, into: %{}, do: {"shard.#{i}.#{j}.weight", ExTorch.zeros({64})}
    file = "model-#{i}.safetensors"
    :ok = ExTorch.save(tensors, Path.join(dir, file), fsync: false)
    {file, Map.keys(tensors)}
  end

map =
  for {file, names} <- files, name <- names do
    ~s("#{name}": "#{file}")
  end

index = Path.join(dir, "model.safetensors.index.json")
File.write!(index, ~s({"metadata": {}, "weight_map": {#{Enum.join(map, ",")}}}))

times =
  in_turns.(
    shards: fn -> for {file, _} <- files, do: ExTorch.load!(Path.join(dir, file)) end,
    index: fn -> ExTorch.load!(index) end
  )

Measure.print("#{shards} shards of 500 tensors, one by one", times.shards)

Measure.print(
  "the same by their index",
  times.index,
  "#{Measure.ratio(times.index, times.shards)} times the shards"
)

File.rm_rf!(dir)
