defmodule ExTorch.Bench.ChartTest do
  # The chart of the README is that of the figures beside it, and any result can be drawn.
  use ExTorch.Case

  for file <- ~w(measure chart results),
      not Code.ensure_loaded?(Module.concat(Bench, Macro.camelize(file))),
      do: Code.require_file("bench/support/#{file}.exs")

  alias Bench.{Chart, Results}

  test "the chart of the README shows the figures that are kept with it" do
    result = Results.read!("bench/peers.json")
    assert File.read!("guides/images/bench.svg") == Chart.svg(result)
    assert length(result["questions"]) >= 10

    for question <- result["questions"] do
      assert [%{"name" => "ExTorch"}, _peer | _peers] = question["answers"]

      for answer <- question["answers"],
          do: assert(answer["median"] in answer["runs"] and length(answer["runs"]) >= 5)
    end
  end

  test "a chart is valid, has a title and a description, and contains text as text" do
    questions = [
      Results.question("a < b", "\"how\" & why?", [
        {"ExTorch", [0.001], [10]},
        {"<peer>", [12.5, 2.0, 3.0], [30, 20, 10]}
      ]),
      Results.question("long", "x", [{"one", [123_456.0], [10]}, {"none", [], []}])
    ]

    result = %{title: "Times > 0", notes: ["a note"], machine: %{cores: 2}, questions: questions}

    {:ok, result} =
      result |> ExTorch.CLI.JSON.encode() |> IO.iodata_to_binary() |> ExTorch.JSON.parse()

    svg = Chart.svg(result)
    assert svg =~ ~s(<title id="title">Times &gt; 0</title>)
    assert svg =~ "&lt;peer&gt; 3.0 ms"
    assert svg =~ "one 123 s"
    refute svg =~ "none"
    assert svg =~ "prefers-color-scheme: dark"

    # every tag is closed
    tags = Regex.scan(~r/<(\/?)(\w+)[^>]*?(\/?)>/, svg, capture: :all_but_first)

    assert [] ==
             Enum.reduce(tags, [], fn
               [_, _, "/"], open -> open
               ["", tag, ""], open -> [tag | open]
               ["/", tag, ""], [tag | open] -> open
             end)
  end
end
