# What does a store add to the cost of reading its file? Applies 2 GB and compares with loading the same file; applies
# 10 of 20,000 tensors and compares with opening the file.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
alias Bench.{Data, Measure}
alias ExTorch.{Checkpoint, Store}

dir = Data.dir()
limits = Measure.limits(dir)
path = Data.write(Path.join(dir, "llm.pt"), Data.llm_sizes(), 2, "HalfStorage")

# A module without its own memory: meta tensors that claim to be on the CPU.
module =
  Map.new(ExTorch.load!(path), fn {name, tensor} ->
    meta = ExTorch.empty(tensor.shape, dtype: :float16, device: :meta)
    {name, %{meta | device: :cpu}}
  end)

ExTorch.Memory.collect()
store = Store.PyTorch.new(path)

# Memory is touched and freed before each measurement (limits.c explains why).
timed = fn fun ->
  System.cmd(limits, Measure.touch_memory())
  ms = Measure.milliseconds(fun)
  ExTorch.Memory.collect()
  ms
end

# The two alternate.
runs =
  for _ <- 1..7 do
    load = timed.(fn -> ExTorch.load!(path) end)
    apply = timed.(fn -> {:ok, %{missing: [], errors: []}} = Store.apply_to(store, module) end)
    {load, apply}
  end

load = Measure.median(Enum.map(runs, &elem(&1, 0)))
apply = Measure.median(Enum.map(runs, &elem(&1, 1)))
Measure.print("2 GB, 291 tensors: ExTorch.load", load)

Measure.print(
  "2 GB, 291 tensors: apply_to",
  apply,
  "#{Measure.ratio(apply, load)} times the load"
)

many = Data.write(Path.join(dir, "many.pt"), List.duplicate(64, 20_000))
names = many |> Checkpoint.open!() |> Checkpoint.keys() |> Enum.take_every(2000)
module = Map.new(names, &{&1, ExTorch.zeros({64})})
store = Store.PyTorch.new(many)
open = Measure.median_time(15, fn -> Checkpoint.open!(many) end)
apply = Measure.median_time(15, fn -> {:ok, %{missing: []}} = Store.apply_to(store, module) end)
Measure.print("20,000 tensors: open", open)

Measure.print(
  "20,000 tensors: apply_to 10 of them",
  apply,
  "#{Measure.ratio(apply, open)} times the opening"
)

File.rm_rf!(dir)
