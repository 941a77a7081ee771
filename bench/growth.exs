# How do times grow with the number of tensors? Opens, loads and saves 1, 10 and 100 times as many, in every format, and
# prints the exponent of n that fits the times: 1 is linear.
for file <- ~w(data measure), do: Code.require_file("support/#{file}.exs", __DIR__)
alias Bench.{Data, Measure}
alias ExTorch.Checkpoint

counts = [1_000, 10_000, 100_000]
dir = Data.dir()
path = fn format, count -> Path.join(dir, "#{count}.#{format}") end

# The slope of a straight line through the logarithms.
exponent = fn times ->
  points = for {count, ms} <- times, do: {:math.log(count), :math.log(ms)}
  n = length(points)
  mean_x = Enum.sum(for {x, _} <- points, do: x) / n
  mean_y = Enum.sum(for {_, y} <- points, do: y) / n

  Enum.sum(for {x, y} <- points, do: (x - mean_x) * (y - mean_y)) /
    Enum.sum(for {x, _} <- points, do: (x - mean_x) ** 2)
end

tensors =
  Map.new(counts, fn count ->
    {count, Map.new(0..(count - 1), &{Data.name(&1), ExTorch.full({16}, 1.5)})}
  end)

save = fn format, count ->
  ExTorch.save!(tensors[count], path.(format, count), format: format, fsync: false)
end

jobs = [
  {"save", save},
  {"open", fn format, count -> Checkpoint.open!(path.(format, count)) end},
  {"load", fn format, count -> ExTorch.load!(path.(format, count)) end}
]

for format <- [:zip, :legacy, :streaming, :safetensors], {name, job} <- jobs do
  times =
    for count <- counts do
      job.(format, count)
      {count, Measure.best_time(5, fn -> job.(format, count) end)}
    end

  {_, ms} = List.last(times)
  listed = Enum.map_join(times, ", ", fn {_, ms} -> "#{Float.round(ms, 1)}" end)

  note =
    "n to the power of #{Float.round(exponent.(times), 2)}; #{Enum.join(counts, ", ")}: #{listed} ms"

  Measure.print("#{name} #{format}, 100,000 tensors, best of 5", ms, note)
end

File.rm_rf!(dir)
