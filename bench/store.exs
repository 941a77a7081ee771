# What does a store cost beside the file it reads? Applying 2 GB against a plain load of the same file, and 10 of 20,000
# tensors against opening it.
Code.require_file("data.exs", __DIR__)
alias Bench.Data
alias ExTorch.{Checkpoint, Store}

dir = Data.dir()
limits = Path.join(dir, "limits")

{_, 0} =
  System.cmd(System.get_env("CC", "cc"), ["-O2", "-o", limits, Path.join(__DIR__, "limits.c")])

path = Data.write(Path.join(dir, "llm.pt"), Data.llm_sizes(), 2, "HalfStorage")

# The sides take turns, each right after memory was touched and given back.
module =
  ExTorch.load!(path)
  |> Map.new(fn {name, t} -> {name, ExTorch.empty(t.shape, dtype: :float16, device: :meta)} end)

module = Map.new(module, fn {name, t} -> {name, %{t | device: :cpu}} end)
ExTorch.Memory.collect()
store = Store.PyTorch.new(path)

timed = fn fun ->
  System.cmd(limits, ["-3000000000"])
  {time, result} = :timer.tc(fun)
  _ = result
  time / 1000
end

runs =
  for _ <- 1..7 do
    a = timed.(fn -> ExTorch.load!(path) end)
    ExTorch.Memory.collect()
    b = timed.(fn -> {:ok, %{missing: [], errors: []}} = Store.apply_to(store, module) end)
    ExTorch.Memory.collect()
    {a, b}
  end

load = Data.middle(Enum.map(runs, &elem(&1, 0)))
apply = Data.middle(Enum.map(runs, &elem(&1, 1)))
Data.show("2 GB, 291 tensors: ExTorch.load", load)
Data.show("2 GB, 291 tensors: apply_to", apply, "#{Float.round(apply / load, 2)} of the load")

many = Data.write(Path.join(dir, "many.pt"), List.duplicate(64, 20_000))
names = many |> Checkpoint.open!() |> Checkpoint.keys() |> Enum.take_every(2000)
module = Map.new(names, &{&1, ExTorch.zeros({64})})
store = Store.PyTorch.new(many)
open = Data.median(15, fn -> Checkpoint.open!(many) end)
some = Data.median(15, fn -> {:ok, %{missing: []}} = Store.apply_to(store, module) end)
Data.show("20,000 tensors: open", open)

Data.show(
  "20,000 tensors: apply_to 10 of them",
  some,
  "#{Float.round(some / open, 2)} of opening"
)

File.rm_rf!(dir)
