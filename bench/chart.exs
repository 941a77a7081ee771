# Draws the chart of a result again: mix run bench/chart.exs build/bench/peers.json chart.svg
# Without arguments (make bench), draws all results.
Code.require_file("support/measure.exs", __DIR__)
Code.require_file("support/chart.exs", __DIR__)
Code.require_file("support/results.exs", __DIR__)
alias Bench.{Chart, Results}

jobs =
  case System.argv() do
    [json, svg] ->
      [{json, svg}]

    [] ->
      for json <- Path.wildcard("build/bench/*.json"), do: {json, Path.rootname(json) <> ".svg"}
  end

for {json, svg} <- jobs, do: File.write!(svg, json |> Results.read!() |> Chart.svg())
