# What does an operator cost, and when is a dirty scheduler worth the switch?
#
# The same addition through the brief path (a pointwise operator on small tensors runs where it is called) and through a
# dirty scheduler (an operator that is not on the brief list), over sizes; an empty NIF call beside them.
Code.require_file("empty_call.exs", __DIR__)

measure = fn fun ->
  for _ <- 1..2_000, do: fun.()
  runs = for _ <- 1..7, do: elem(:timer.tc(fn -> for _ <- 1..10_000, do: fun.() end), 0) / 10_000
  Enum.at(Enum.sort(runs), 3)
end

IO.puts("microseconds a call, medians of 7 runs of 10,000")

IO.puts(
  "empty NIF call and environment  #{Float.round(measure.(fn -> Bench.EmptyCall.empty_call() end), 2)}"
)

IO.puts(
  String.pad_trailing("elements", 12) <>
    String.pad_trailing("add", 12) <> String.pad_trailing("add, dirty", 12) <> "view"
)

for elements <- [1, 64, 512, 2048, 4096, 16_384] do
  a = ExTorch.ones({elements})
  add = measure.(fn -> ExTorch.op("aten::add.Tensor", [a, 1]) end)
  # the same kernel under a name that is not on the brief list
  dirty = measure.(fn -> ExTorch.op("aten::rsub.Scalar", [a, 1]) end)
  view = measure.(fn -> ExTorch.op("aten::unsqueeze", [a, 0]) end)

  [elements, Float.round(add, 2), Float.round(dirty, 2), Float.round(view, 2)]
  |> Enum.map_join(&String.pad_trailing(to_string(&1), 12))
  |> IO.puts()
end
