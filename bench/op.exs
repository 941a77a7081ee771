# What does an operator call cost, and from which size on is a dirty scheduler worth the switch?
#
# Compares an operator that runs on the scheduler of its caller when its tensors are small (add), one of the same work
# that always runs on a dirty scheduler (rsub), a view, and an empty NIF call.
Code.require_file("support/empty_call.exs", __DIR__)

measure = fn fun ->
  for _ <- 1..2_000, do: fun.()
  runs = for _ <- 1..7, do: elem(:timer.tc(fn -> for _ <- 1..10_000, do: fun.() end), 0) / 10_000
  Enum.at(Enum.sort(runs), 3)
end

row = fn cells -> cells |> Enum.map_join(&String.pad_trailing(to_string(&1), 12)) |> IO.puts() end

baseline = measure.(&Bench.EmptyCall.empty_call/0)
IO.puts("microseconds per call, medians of 7 runs of 10,000 calls")
IO.puts("empty NIF call with an environment: #{Float.round(baseline, 2)}")
row.(["elements", "add", "rsub, dirty", "unsqueeze"])

for elements <- [1, 64, 512, 2048, 4096, 16_384] do
  a = ExTorch.ones({elements})
  add = measure.(fn -> ExTorch.op("aten::add.Tensor", [a, 1]) end)
  dirty = measure.(fn -> ExTorch.op("aten::rsub.Scalar", [a, 1]) end)
  view = measure.(fn -> ExTorch.op("aten::unsqueeze", [a, 0]) end)
  row.([elements, Float.round(add, 2), Float.round(dirty, 2), Float.round(view, 2)])
end
